"""Connections: frames in, requests to their handlers, replies out."""
