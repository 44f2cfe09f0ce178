"""Names of kafka-python, confluent-kafka, aiokafka and Java's clients: an error about one of them has the name here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

PAGE = "docs/client.md has a table of the names of other clients"

_POLL = "poll(seconds) returns the records of one poll; the setting max_poll_records limits them"
_LOOP = "for record in consumer: … yields them one by one"
_SEND = "send(topic, value, key), which returns a Delivery; on_delivery=f gets its result"
_FUTURE = "result() waits and raises the error; send(on_delivery=f) calls f(metadata, error)"
_SERVED = "leave the call out: background threads of the client do this"
_TOOLS = "Kafka's own tools, or the admin client of confluent-kafka or kafka-python"
_VALUE = "for record in polled.records(): record."
_COMMIT = "commit() waits for the reply, commit_async(callback=f) does not"

ATTRIBUTES: dict[str, dict[str, str]] = {
    "Consumer": {
        "consume": _POLL,
        "getmany": _POLL,
        "getone": _LOOP,
        "next": _LOOP,
        "commit_sync": _COMMIT,
        "commitSync": _COMMIT,
        "commitAsync": _COMMIT,
        "store_offsets": "commit(record.next_offsets); the positions of a poll are stored by the next one",
        "get_watermark_offsets": "beginning_offsets([tp]) and end_offsets([tp])",
        "highwater": "end_offsets([tp])",
        "topics": "list_topics()",
        "partitions_for_topic": "partitions_for(topic)",
        "available_partitions_for_topic": "partitions_for(topic)",
        "partitionsFor": "partitions_for(topic)",
        "consumer_group_metadata": "group_metadata()",
        "groupMetadata": "group_metadata()",
        "memberid": "group_metadata().member_id",
        "offsetsForTimes": "offsets_for_times(times_ms)",
        "seekToBeginning": "seek_to_beginning(partitions)",
        "seekToEnd": "seek_to_end(partitions)",
        "beginningOffsets": "beginning_offsets(partitions)",
        "endOffsets": "end_offsets(partitions)",
        "incremental_assign": "assign(partitions), with all of them",
        "incremental_unassign": "assign(partitions), with those that are left",
        "unassign": "unsubscribe()",
        "seek_to_committed": "seek(tp, offset) with the offsets of committed(partitions)",
        "last_stable_offset": "end_offsets([tp]) of a consumer with isolation_level=read_committed",
        "start": "no call is needed: the consumer connects by itself; close() ends it",
        "stop": "close()",
    },
    "Producer": {
        "produce": _SEND,
        "poll": f"{_SERVED}; flush() waits for the deliveries",
        "send_and_wait": "send(…).result()",
        "initTransactions": "init_transactions()",
        "beginTransaction": "begin_transaction()",
        "commitTransaction": "commit_transaction()",
        "abortTransaction": "abort_transaction()",
        "sendOffsetsToTransaction": "send_offsets_to_transaction(offsets, consumer.group_metadata())",
        "partitionsFor": "partitions_for(topic)",
        "partitions_for_topic": "partitions_for(topic)",
        "list_topics": "odradek.Admin(…).topics()",
        "produce_batch": "send_batch(topic, table), with Arrow columns",
        "create_batch": "send_batch(topic, table), with Arrow columns",
        "purge": "close(0) gives the waiting records up",
        "start": "no call is needed: the producer connects by itself; close() ends it",
        "stop": "close()",
    },
    "Delivery": {
        "get": "result(timeout), in seconds",
        "add_callback": _FUTURE,
        "add_errback": _FUTURE,
        "add_both": _FUTURE,
        "add_done_callback": _FUTURE,
        "is_done": "done()",
        "success": "done(), and exception() is None",
        "failure": "exception() is not None",
        "value": "result()",
        "error_on_callbacks": _FUTURE,
        "chain": _FUTURE,
        "retriable": "exception().retriable",
        "succeeded": "done(), and exception() is None",
        "failed": "exception() is not None",
    },
    "Admin": {
        "create_topic": "create_topics([NewTopic(name, partitions)]), with odradek.client.NewTopic",
        "delete_topic": "delete_topics([name])",
        "list_topics": "topics(), and describe_topics() with their partitions",
        "list_consumer_groups": "list_groups()",
        "describe_consumer_groups": "describe_groups(groups)",
        "delete_consumer_groups": "delete_groups(groups)",
        "list_consumer_group_offsets": "list_group_offsets(group)",
        "alter_consumer_group_offsets": "alter_group_offsets(group, offsets)",
        "delete_consumer_group_offsets": "delete_group_offsets(group, partitions)",
        "incremental_alter_configs": "alter_configs(kind, name, changes)",
        "list_partition_offsets": "list_offsets(partitions)",
        "reset_group_offsets": "alter_group_offsets(group, offsets)",
        "describe_topic_partitions": "describe_topics(names)",
        "find_coordinator": "coordinator(group)",
        "describe_metadata_quorum": "describe_nodes()",
        "cluster_id": "describe_cluster().cluster_id",
        "reset_configs": "alter_configs(kind, name, {setting: None})",
        "wait_for_topics": "describe_topics(names), which raises UnknownTopic",
        "poll": "no call is needed: each call returns its result",
        "start": "no call is needed: the client connects by itself; close() ends it",
        **dict.fromkeys(
            (
                "alter_user_scram_credentials",
                "create_acls",
                "delete_acls",
                "describe_acls",
                "describe_features",
                "describe_log_dirs",
                "describe_user_scram_credentials",
                "list_config_resources",
                "update_features",
            ),
            _TOOLS,
        ),
    },
    "Record": {
        "timestamp": "timestamp_ms",
        "error": "errors are raised by poll",
        "len": "len(record.value)",
    },
    "Polled": {
        **{name: f"{_VALUE}{name}" for name in ("topic", "partition", "offset", "key", "value", "headers")},
        "timestamp": f"{_VALUE}timestamp_ms",
        "error": "errors are raised by poll",
        "count": "len(list(polled.records()))",
        "partitions": "list(polled): it is a mapping from partitions to batches of records",
        "next_offset": "next_offsets",
        **dict.fromkeys(("to_pandas", "to_table", "to_arrow"), "table(), and then table().to_pandas()"),
    },
    "Broker": {
        "get_bootstrap_server": "bootstrap_servers",
        "get_bootstrap_servers": "bootstrap_servers",
        "bootstrap_server": "bootstrap_servers",
        "restart": "stop() or kill(), then start()",
        "port": "bootstrap_servers, which is HOST:PORT",
        "host": "bootstrap_servers, which is HOST:PORT",
        "terminate": "stop()",
    },
    "BrokerClock": {
        **dict.fromkeys(
            ("set", "set_time", "move_to", "travel", "freeze", "tick", "sleep", "forward", "add"),
            "advance(days=1) or advance(timedelta): the clock only goes forward",
        ),
        "time": "now() or now_ms()",
        "reset": "a new broker: the clock only goes forward",
    },
    "Faults": {
        **dict.fromkeys(("close", "close_connection", "reset", "cut"), "disconnect(api); clear() removes all faults"),
        **dict.fromkeys(("fail", "inject", "add", "raise_error", "set"), "error(api, code), delay, disconnect or drop"),
        **dict.fromkeys(("timeout", "ignore", "no_reply", "hang"), "drop(api), which sends no reply"),
        **dict.fromkeys(("latency", "slow", "sleep", "wait"), "delay(api, seconds)"),
        "remove": "clear(), which removes all faults",
    },
    "Cluster": {
        "get_bootstrap_server": "bootstrap_servers",
        "bootstrap_server": "bootstrap_servers",
        "restart": "stop(number) or kill(number), then start(number)",
        "advance": "clock.advance(days=1)",
        **dict.fromkeys(("faults_of", "fault", "inject"), "faults(number), such as faults(2).error(api, code)"),
        **dict.fromkeys(("find_coordinator", "coordinator_of", "group_coordinator"), "coordinator(group)"),
        **dict.fromkeys(("leader_of", "find_leader"), "leader(topic, partition)"),
        "terminate": "close()",
    },
    "odradek": {
        "KafkaConsumer": "odradek.Consumer",
        "AIOKafkaConsumer": "odradek.aio.Consumer",
        "DeserializingConsumer": "odradek.Consumer, whose values are bytes",
        "KafkaProducer": "odradek.Producer",
        "AIOKafkaProducer": "odradek.aio.Producer",
        "SerializingProducer": "odradek.Producer, whose values are bytes",
        "KafkaAdminClient": "odradek.Admin",
        "AdminClient": "odradek.Admin",
        "NewTopic": "from odradek.client import NewTopic",
        "KafkaError": "from odradek.client import KafkaError",
        "KafkaException": "from odradek.client import KafkaError",
        "OdradekError": "from odradek.client import OdradekError",
    },
}
"""By class (``odradek``: the package): a method or attribute of other clients, and what has its place here."""

_OFFSET_OF_MESSAGE = "offsets=record.next_offsets, the offset after the record"
_CLIENT_TIMEOUT = "the setting default_api_timeout_ms"

KEYWORDS: dict[str, dict[str, str]] = {
    "poll": {
        "timeout_ms": "timeout, in seconds: poll(1.0)",
        "max_records": "the setting max_poll_records of the consumer",
        "update_offsets": "leave it out: a poll moves the positions",
        "num_messages": "the setting max_poll_records of the consumer",
    },
    "subscribe": {
        "listener": "on_assigned=f, on_revoked=g, on_lost=h",
        "on_assign": "on_assigned",
        "on_revoke": "on_revoked",
    },
    "commit": {
        "message": _OFFSET_OF_MESSAGE,
        "asynchronous": f"leave it out: {_COMMIT}",
        "callback": "commit_async(offsets, callback=f)",
    },
    "commit_async": {"message": _OFFSET_OF_MESSAGE, "asynchronous": "leave it out: commit_async does not wait"},
    "close": {
        "autocommit": "the setting enable_auto_commit",
        "timeout_ms": "timeout, in seconds",
    },
    "send": {
        "timestamp_ms": "timestamp, in milliseconds",
        "callback": "on_delivery=f, which gets f(metadata, error)",
        "on_success": "on_delivery=f, which gets f(metadata, error)",
    },
    "flush": {"timeout_ms": "timeout, in seconds"},
    "create_topics": {
        "timeout_ms": _CLIENT_TIMEOUT,
        "operation_timeout": _CLIENT_TIMEOUT,
        "request_timeout": _CLIENT_TIMEOUT,
        "new_topics": "topics",
    },
    "Broker": {
        "listen": "host and port",
        "bootstrap_servers": "host and port",
        **dict.fromkeys(("log_dir", "log_dirs", "data_directory", "data", "dir", "path"), "data_dir"),
        "address": "host and port",
        **dict.fromkeys(("settings", "configs", "properties", "broker_config"), "config"),
        "brokers": "odradek.Cluster(brokers=N)",
    },
    "ZooKeeper": {
        "port": "leave it out: a free port is chosen, and connect_string has it",
        "host": "leave it out: it is 127.0.0.1, and connect_string has the address",
    },
    "NewTopic": {
        "topic": "name",
        "partitions": "num_partitions",
        "replicas": "replication_factor",
        "config": "configs",
        "topic_configs": "configs",
        "replicas_assignments": "replica_assignments",
        "replica_assignment": "replica_assignments",
    },
}
"""By method: a keyword of other clients, and what has its place here."""

SETTINGS = {
    "sasl_plain_username": "it is sasl_username here, with security_protocol SASL_SSL or SASL_PLAINTEXT",
    "sasl_plain_password": "it is sasl_password here, with security_protocol SASL_SSL or SASL_PLAINTEXT",
    "ssl_cafile": "it is ssl_ca_location here, with security_protocol SSL or SASL_SSL",
    "ssl_certfile": "it is ssl_certificate_location here, with security_protocol SSL or SASL_SSL",
    "ssl_keyfile": "it is ssl_key_location here, with security_protocol SSL or SASL_SSL",
    "ssl_password": "it is ssl_key_password here, with security_protocol SSL or SASL_SSL",
    "ssl_context": "set the files of certificates: ssl_ca_location, ssl_certificate_location, ssl_key_location",
    "ssl_check_hostname": "ssl_endpoint_identification_algorithm='' turns the check of the host name off; "
    "without it, leave this out",
    "api_version": "the client asks each broker for its versions: leave it out",
    "enable_incremental_fetch_sessions": "the client uses fetch sessions where brokers have them: leave it out",
    "max_in_flight_requests_per_connection": "only a producer has this setting: leave it out",
    "kafka_client": "the client makes its own connections: leave it out",
    "partitioner": "the partitioner is that of Java's default; send(partition=…) sets a partition",
    "proxy_url": "proxies are not supported: leave it out",
    "socks5_proxy": "proxies are not supported: leave it out",
    "broker_version": "the client asks each broker for its versions: leave it out",
    "consumer_timeout_ms": "poll(timeout) waits at most timeout seconds, and returns no records then",
    "enable_partition_eof": "compare position(tp) with end_offsets([tp])",
    "default_topic_config": "give its settings themselves, for example auto_offset_reset",
    "auto_commit_enable": "it is enable_auto_commit here",
    "queued_m": "the client limits what it fetches ahead: leave it out",
    "queue_buffering_max_messages": "buffer_memory limits the records that wait, in bytes",
    "queue_buffering_max_kbytes": "buffer_memory limits the records that wait, in bytes",
    "queue_buffering_max_ms": "it is linger_ms here",
    "message_timeout_ms": "it is delivery_timeout_ms here",
    "message_send_max_retries": "it is retries here",
    "message_max_bytes": "it is max_request_size here",
    "batch_num_messages": "batch_size limits a batch, in bytes",
    "max_batch_size": "it is batch_size here",
    "request_required_acks": "it is acks here",
    "compression_codec": "it is compression_type here",
    "dr_": "send(on_delivery=f) calls f(metadata, error) for each record",
    "on_delivery": "send(on_delivery=f) calls f(metadata, error) for each record",
    "delivery_report": "send(on_delivery=f) calls f(metadata, error) for each record",
    "on_commit": "commit_async(callback=f) calls f(offsets, error)",
    "default_offset_commit_callback": "commit_async(callback=f) calls f(offsets, error)",
    "offset_store_": "commits go to the group, or with offsets_storage=zookeeper to ZooKeeper: leave it out",
    "error_cb": "calls raise errors, and the logger odradek has warnings: leave it out",
    "stats_cb": "the client has no statistics: leave it out",
    "statistics_interval_ms": "the client has no statistics: leave it out",
    "throttle_cb": "the client waits by itself when a broker throttles it: leave it out",
    "log_": "set the level of the logger odradek: logging.getLogger('odradek')",
    "logger": "set the level of the logger odradek: logging.getLogger('odradek')",
    "debug": "set the level of the logger odradek: logging.getLogger('odradek').setLevel('DEBUG')",
    "oauth_cb": "set sasl_oauthbearer_token_endpoint_url",
    "socket_": "the operating system sets the options of sockets: leave it out",
    "selector": "the client has its own event loop: leave it out",
    "loop": "the client has its own event loop, and odradek.aio uses the running one: leave it out",
    "sock_chunk_bytes": "the client has its own event loop: leave it out",
    "connections_max": "connections stay open until the client is closed: leave it out",
    "topic_metadata_": "metadata_max_age_ms is the age at which topics are looked up again",
    "metadata_broker_list": "it is bootstrap_servers here",
}
"""By the prefix of a setting of kafka-python, aiokafka or librdkafka: what has its place here."""


class NoOthers(TypedDict):
    """No further keywords. At run time, others get a TypeError with the name that they have here."""


def refuse(method: str, others: Mapping[str, object]) -> None:
    """Raises TypeError for keywords that ``method`` does not have."""
    name = min(others)
    known = KEYWORDS.get(method, {}).get(name)
    raise TypeError(f"{method}() has no {name}" + (_here(known) if known else f" ({PAGE})"))


def missing_text(owner: str, name: str) -> str:
    """Returns the text of an AttributeError about ``owner``, a class of this client or ``odradek``."""
    what = "module 'odradek'" if owner == "odradek" else f"{owner!r} object"
    known = ATTRIBUTES.get(owner, {}).get(name)
    return f"{what} has no attribute {name!r}" + (_here(known) if known else "")


def _here(known: str) -> str:
    """Returns the end of an error: the form here, or what to do."""
    return f": {known}" if known.startswith(("leave ", "no call ", "errors ")) else f": here, {known}"


class OtherNames:
    """The base class of clients whose missing attributes are looked up in ``ATTRIBUTES``."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> object:
            raise AttributeError(missing_text(type(self).__name__, name), name=name, obj=self)
