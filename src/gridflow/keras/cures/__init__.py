"""Everything that touches Keras's private parts: a cure each, with its probe."""
