"""Folders for tables and checkpoints: on this machine, and on the file systems of Hadoop."""
