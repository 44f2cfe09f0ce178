"""KIP-848 groups: members, reconciliation, assignors, patterns and records."""
