"""Kafka's security protocols of listeners, and the mechanisms of SCRAM."""

from collections.abc import Mapping

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism of SCRAM → hash function. Here, so that settings without SCRAM do not load its state machines."""
