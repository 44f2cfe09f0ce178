"""Committed and pending offsets of groups, and the fast ways of their records."""
