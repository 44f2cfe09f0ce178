"""``odradek monitor``."""
