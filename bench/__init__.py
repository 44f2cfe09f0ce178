"""Odradek beside Apache Kafka, alternately, in one run: ``python -m bench``."""
