"""Repairs of a data directory that no broker uses, for `odradek metadata`."""
