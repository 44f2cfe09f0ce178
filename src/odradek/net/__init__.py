"""Connections to brokers and the wire format of fetches, for clients and for followers."""
