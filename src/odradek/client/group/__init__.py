"""Membership in a group: joining by either protocol, assignment of partitions, commits."""
