"""Commands for a Kafka cluster: its nodes, topics, transactions and offsets topic."""
