"""State machines of replication: what the leader of a partition knows of its followers."""
