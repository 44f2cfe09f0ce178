"""``odradek top``."""
