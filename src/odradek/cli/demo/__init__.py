"""``odradek demo``."""
