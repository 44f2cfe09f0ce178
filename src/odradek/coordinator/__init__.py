"""Drives durable state machines: each on a partition of an internal topic, which is all that a restart needs."""
