"""Limits that all connections share: quotas, and the memory of requests and replies."""
