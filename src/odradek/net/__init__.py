"""Connections of clients to brokers."""
