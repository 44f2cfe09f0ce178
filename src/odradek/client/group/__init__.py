"""Membership in a group: the two protocols, the assignors of classic groups, and commits."""
