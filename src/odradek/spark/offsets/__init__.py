"""The offsets of a query: where it begins, what it has read, what its group has, and what was lost."""
