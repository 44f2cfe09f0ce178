"""Brokers and ZooKeeper for tests: ``odradek.Broker``, ``odradek.ZooKeeper``, and the pytest plugin."""
