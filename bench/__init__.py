"""Odradek and Apache Kafka, measured in turn in one run: ``python -m bench``."""
