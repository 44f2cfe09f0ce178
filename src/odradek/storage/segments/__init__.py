"""The segments of a log, their indexes, and searches in them."""
