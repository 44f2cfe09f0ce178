"""The offsets of groups in ZooKeeper, as Kafka's consumers up to 1.1 and other programs keep them there.

- ``config``: the connect string, session timeout, login and TLS, from a file or the environment.
- ``connection``: one session, over kazoo; its errors are in ``errors``.
- ``layout``: paths and values of offsets, as Kafka or another program stores them.
- ``store``: reads and writes the offsets of groups, one group or several in one transaction.
- ``consumer_session``, ``consumer_offsets``: one consumer's partitions and commits, and their use by an event loop.
- ``members``: registered consumers and the owners of partitions.
- ``export_file``: the files of Kafka's ExportZkOffsets.
- ``bounds``: the checks of offsets against the logs of a Kafka cluster.
- ``migration``: copies the offsets of a group from ZooKeeper to Kafka, or from Kafka to ZooKeeper.

The first connection imports kazoo, which the extra ``odradek[zookeeper]`` installs.
"""
