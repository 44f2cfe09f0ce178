"""The log of one partition on disk, in the exact file formats of Apache Kafka 4.3. Synchronous: no event loop, no
sockets.

``log`` is the log. Its parts: ``log_writer`` (the write path), ``log_removals`` (retention, truncations, cleaned
segments), ``log_sync`` (what is on the disk for sure), ``segments`` (files and indexes), ``producers`` with their
snapshots, ``epochs``, ``disk`` (online, offline, a failed write), ``recovery`` (the check of an opened log),
``cleaning`` (compaction).
"""
