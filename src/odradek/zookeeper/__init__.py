"""The offsets of groups in ZooKeeper, as Kafka's consumers up to 1.1 and other programs keep them there.

``config``: the connect string, session timeout, login and TLS, from a file or the environment. ``connection``: one
session, over kazoo; its errors are in ``errors``. ``layout``: paths and values of offsets, Kafka's and others (pure).
``store``: reads and writes the offsets of groups, one group or several in one transaction. ``members``: registered
consumers and the owners of partitions. ``export_file``: the files of Kafka's ExportZkOffsets (pure). ``bounds``: the
checks against the logs of a Kafka cluster. ``migration``: offsets of a group from ZooKeeper to Kafka and back.

The first connection imports kazoo, which the extra ``odradek[zookeeper]`` installs.
"""
