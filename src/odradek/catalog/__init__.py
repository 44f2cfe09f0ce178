"""The catalogue: topics, settings, quotas, users and features as a state machine with its records."""
