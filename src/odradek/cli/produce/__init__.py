"""``odradek produce``."""
