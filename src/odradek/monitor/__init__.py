"""The live view of all groups of a cluster: a state machine, the follower that feeds it, and its HTTP service.

Importing this package loads nothing else.
"""
