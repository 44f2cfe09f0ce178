"""One partition's log on disk, byte for byte as Apache Kafka 4.3 keeps it. Synchronous: no event loop, no sockets."""
