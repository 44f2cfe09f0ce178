"""The live view of all groups of a cluster: a state tracker, the reader that feeds it, and its HTTP service.

Importing this package loads nothing else.
"""
