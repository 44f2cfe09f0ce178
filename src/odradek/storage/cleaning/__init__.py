"""The log cleaner: the choice of logs, Kafka's rules of compaction, and two engines."""
