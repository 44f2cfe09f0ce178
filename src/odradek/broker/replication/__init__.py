"""The replication of partitions: fetches of followers, what leaders know of them, and changes of the ISR."""
