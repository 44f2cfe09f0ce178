"""Connections of a node to other nodes."""
