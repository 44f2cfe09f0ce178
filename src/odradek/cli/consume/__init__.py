"""``odradek consume``."""
