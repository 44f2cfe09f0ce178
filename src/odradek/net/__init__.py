"""Connections to brokers, and fetches on the wire: what a client needs, and a follower."""
