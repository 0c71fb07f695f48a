"""Where rows come from: a module for each kind of data."""
