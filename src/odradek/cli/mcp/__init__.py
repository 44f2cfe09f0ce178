"""``odradek mcp``."""
