"""``odradek zookeeper``: offsets of groups in ZooKeeper."""
