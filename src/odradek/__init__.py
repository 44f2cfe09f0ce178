"""Odradek: Kafka's consumer-offset system in Python."""

from odradek._version import __version__

__all__ = ["__version__"]
