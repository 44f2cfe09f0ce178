"""Replicas, ISRs and leaders of partitions: placement, elections, and the changes that they make."""
