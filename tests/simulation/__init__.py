"""Jobs in a simulated world, with the product's own decisions: ``python -m simulation --help``."""
