"""A schema registry with Confluent's HTTP API. It keeps its schemas in a topic, as Confluent's registry does.

``topic_log`` reads and writes the topic, ``store`` has the state, ``api`` answers requests, ``http_server`` has the
sockets, ``server`` puts them together. What a request does is decided in ``odradek.schemas.subjects``.
"""
