"""``odradek transactions``: transactions of any Kafka cluster."""
