"""The log of one partition on disk, in the exact file formats of Apache Kafka 4.3. Synchronous: no event loop, no
sockets."""
