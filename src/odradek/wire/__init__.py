"""Kafka's frames and messages as bytes: sans I/O."""
