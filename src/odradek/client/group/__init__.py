"""What a consumer is in its group: settings, subscription, errors, the two protocols, assignors, and commits."""
