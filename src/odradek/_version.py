"""The version, where the build reads it."""

__version__ = "0.1.0"
