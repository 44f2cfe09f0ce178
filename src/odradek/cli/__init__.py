"""The command line: ``odradek`` and its commands."""
