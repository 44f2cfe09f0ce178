"""Tables of settings: Kafka's name, type, default, limits and documentation.

A setting of the broker is an attribute of ``BrokerConfigTable``: its name with underscores, its type, and its default,
limits and documentation; the default None means unset. A topic setting's row is ``name | type | default | limits |
fallbacks | documentation``; the default ``-`` means unset. The fallbacks are broker settings. If a topic does not set
the value, the first fallback with a value applies. A row without documentation has that of its first fallback.

Limits: ``a..b`` is a range, which may be open at either end; ``a..b or c`` also allows c. ``in x,y`` is one of these
values, ``list x,y`` a list of them. ``replicas`` is ``*`` or a list of partition:broker pairs.

``offsets.topic.segment.bytes`` and ``transaction.state.log.segment.bytes`` have the lower limit of ``segment.bytes``.
The numbers of partitions of these topics have the upper limit of a request (``MAX_PARTITIONS_PER_REQUEST``). Kafka
also starts with values outside these limits, but then its controller refuses to create the topic, so there is no
coordinator.

``BrokerConfigTable`` has only settings with an effect; ``groups/config`` and ``transactions/config`` declare others.
Settings without an effect are in ``ignored`` and ``TOPIC_INERT``, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T = TypeVar("T")

NO_SUCH_GROUPS = "The broker has no groups of this kind yet."
"""The reason why settings of share and streams groups have no effect."""


class BrokerSetting(Generic[T]):
    """The declaration of a setting. In a ``BrokerConfig``, the attribute is the value in effect."""

    __slots__ = ("default", "doc", "kind", "limits")

    def __init__(self, kind: str, default: str | None, doc: str, limits: str) -> None:
        self.kind, self.default, self.doc, self.limits = kind, default, doc, limits

    if TYPE_CHECKING:

        def __get__(self, config: object, of: type) -> T: ...


class SettingKind(Generic[T]):
    """Declares settings of one type. ``T`` is the type of the parsed value."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __call__(self, default: str, doc: str, limits: str = "") -> BrokerSetting[T]: ...

    @overload
    def __call__(self, default: None, doc: str, limits: str = "") -> BrokerSetting[T | None]: ...

    def __call__(self, default: str | None, doc: str, limits: str = "") -> BrokerSetting[Any]:
        return BrokerSetting(self.name, default, doc, limits)


BOOLEAN = SettingKind[bool]("boolean")
STRING = SettingKind[str]("string")
INT = SettingKind[int]("int")
SHORT = SettingKind[int]("short")
LONG = SettingKind[int]("long")
DOUBLE = SettingKind[float]("double")
LIST = SettingKind[tuple[str, ...]]("list")
CLASS = SettingKind[str]("class")
PASSWORD = SettingKind[str]("password")


class BrokerConfigTable:
    """The settings of the broker."""

    node_id = INT("1", "Id of this broker. Kafka has no default.", "0..")
    broker_id = INT("-1", "Older name of node.id.")
    broker_rack = STRING(None, "Rack that this broker reports.")
    process_roles = LIST(None, "Roles of a node of a cluster; unset: a lone broker.", "list broker,controller")
    controller_quorum_voters = LIST("", "The controller of the cluster, as NODE@HOST:PORT.")
    controller_listener_names = LIST(None, "Listeners of the controller, e.g. CONTROLLER.")
    inter_broker_listener_name = STRING(None, "Listener by which other brokers connect.")
    security_inter_broker_protocol = STRING(
        "PLAINTEXT", "Name and protocol of the brokers' listener.", "in PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL"
    )
    sasl_mechanism_controller_protocol = STRING("GSSAPI", "Mechanism of the broker's own login at a controller.")
    sasl_mechanism_inter_broker_protocol = STRING("GSSAPI", "Mechanism of the broker's own login at other brokers.")
    broker_heartbeat_interval_ms = INT("2000", "Interval in ms of a broker's heartbeats to its controller.")
    broker_session_timeout_ms = INT("9000", "Time in ms without a heartbeat after which a broker is fenced.")
    initial_broker_registration_timeout_ms = INT("60000", "Time in ms in which a broker has to register; then it ends.")
    metadata_max_idle_interval_ms = INT(
        "500", "Time in ms after which an empty record shows brokers that they have all; 0: never.", "0.."
    )
    auto_leader_rebalance_enable = BOOLEAN("true", "Whether a controller elects first replicas again that may lead.")
    leader_imbalance_check_interval_seconds = LONG("300", "Interval in s of these elections.", "1..")
    unclean_leader_election_enable = BOOLEAN("false", "Whether a replica that may lack records leads if no other can.")
    unclean_leader_election_interval_ms = LONG("300000", "Interval in ms of unclean elections.", "1..")
    min_insync_replicas = INT("1", "Fewest in-sync replicas for writes with acks=all, at most all replicas.", "1..")
    listeners = LIST("PLAINTEXT://:9092", "Listening addresses, as NAME://host:port, in place of --listen.")
    advertised_listeners = LIST(None, "Addresses that clients of each listener get, as NAME://host:port.")
    listener_security_protocol_map = STRING(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener.",
    )
    config_providers = LIST("", "Sources of variables in settings, such as ${env:NAME}; the start alone reads them.")
    sasl_enabled_mechanisms = LIST("GSSAPI", "Mechanisms of the listeners with SASL.")
    sasl_jaas_config = PASSWORD(
        None,
        "Users of PLAIN, and the login of this node at others, with the prefixes of a listener and of the mechanism.",
    )
    sasl_oauthbearer_clock_skew_seconds = INT("30", "Allowed difference of clocks for the times of tokens, in s.")
    sasl_oauthbearer_expected_audience = LIST("", "Tokens have to name one of these audiences; empty: they need none.")
    sasl_oauthbearer_expected_issuer = STRING(None, "Issuer of tokens; unset: every issuer.")
    sasl_oauthbearer_jwks_endpoint_refresh_ms = LONG("3600000", "How often the keys of tokens are read again, in ms.")
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = LONG(
        "10000", "Longest pause in ms after a failure; also the shortest time between readings that unknown keys cause."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = LONG("100", "First pause in ms after a failure.")
    sasl_oauthbearer_jwks_endpoint_url = STRING(None, "File or address of the keys of tokens: file:///PATH, https://….")
    sasl_oauthbearer_scope_claim_name = STRING("scope", "Claim of a token with its scopes.")
    sasl_oauthbearer_sub_claim_name = STRING("sub", "Claim of a token with the name of the user.")
    sasl_server_callback_handler_class = CLASS(None, "Kafka's class that checks tokens, with two prefixes.")
    sasl_server_max_receive_size = INT("524288", "Longest request in bytes before the end of a login.", "1..")
    ssl_allow_dn_changes = BOOLEAN("false", "Whether a new certificate of a listener may have another subject.")
    ssl_allow_san_changes = BOOLEAN("false", "Whether a new certificate may lack alternative names of the former one.")
    ssl_cipher_suites = LIST("", "Cipher suites of TLS 1.2, by Java's names; empty: those of OpenSSL.")
    ssl_client_auth = STRING("none", "Whether clients need a certificate.", "in required,requested,none")
    ssl_enabled_protocols = LIST("TLSv1.2,TLSv1.3", "Versions of TLS.")
    ssl_key_password = PASSWORD(None, "Password of an encrypted private key.")
    ssl_keystore_certificate_chain = PASSWORD(None, "Certificates in PEM, in place of a file.")
    ssl_keystore_key = PASSWORD(None, "Private key in PEM, in place of a file.")
    ssl_keystore_location = STRING(None, "File with the private key and the certificate.")
    ssl_keystore_password = PASSWORD(None, "Password of a PKCS12 file.")
    ssl_keystore_type = STRING("JKS", "PEM or PKCS12. JKS, Kafka's default, also reads PKCS12.")
    ssl_principal_mapping_rules = STRING("DEFAULT", "Rules that make user names of certificates' names.")
    ssl_protocol = STRING("TLSv1.3", "TLSv1.2 allows no TLS 1.3.")
    ssl_truststore_certificates = PASSWORD(None, "Trusted certificates in PEM, in place of a file.")
    ssl_truststore_location = STRING(None, "File with the certificates that clients are trusted by.")
    ssl_truststore_password = PASSWORD(None, "Password of a PKCS12 file.")
    ssl_truststore_type = STRING("JKS", "PEM or PKCS12. JKS, Kafka's default, also reads PKCS12.")
    connections_max_reauth_ms = LONG("0", "Time in ms after which a client has to log in again; 0 is no limit.")
    connection_failed_authentication_delay_ms = INT("100", "Time in ms that the reply to a refused login waits.", "0..")
    delegation_token_expiry_check_interval_ms = LONG("3600000", "Interval in ms of the removal of ended tokens.", "1..")
    delegation_token_expiry_time_ms = LONG("86400000", "Life of a delegation token without a renewal, in ms.", "1..")
    delegation_token_max_lifetime_ms = LONG("604800000", "Longest life of a delegation token, in ms.", "1..")
    delegation_token_secret_key = PASSWORD(None, "Key of the secrets of delegation tokens; without it there are none.")
    log_dirs = LIST(None, "Data directory; set by --data-dir.")
    authorizer_class_name = STRING("", "Class of the authorizer, Kafka's StandardAuthorizer; empty: no authorizer.")
    auto_create_topics_enable = BOOLEAN("true", "Whether a Metadata request may create an unknown topic.")
    delete_topic_enable = BOOLEAN("true", "Whether topics can be deleted.")
    num_partitions = INT("1", "Partitions of a topic that is created without a partition count.", "1..")
    default_replication_factor = INT("1", "Replicas of a topic that is created without a replication factor.")
    message_max_bytes = INT("1048588", "Longest accepted record batch in bytes.", "0..")
    compression_type = STRING("producer", "Codec of stored batches.", "in uncompressed,zstd,lz4,snappy,gzip,producer")
    compression_gzip_level = INT("-1", "gzip level if the broker compresses; -1 is gzip's default.", "1..9 or -1")
    compression_zstd_level = INT("3", "zstd level if the broker compresses.", "-131072..22")
    log_cleanup_policy = LIST("delete", "Deletion or compaction of old records.", "list compact,delete")
    log_segment_bytes = INT("1073741824", "Size in bytes at which a new segment begins.", "1048576..")
    log_roll_ms = LONG(None, "Age at which a new segment begins.", "1..")
    log_roll_hours = INT("168", "log.roll.ms in hours, if log.roll.ms is unset.", "1..")
    log_roll_jitter_ms = LONG(None, "Largest random reduction of the age for a new segment, for each segment.", "0..")
    log_roll_jitter_hours = INT("0", "log.roll.jitter.ms in hours, if log.roll.jitter.ms is unset.", "0..")
    log_retention_ms = LONG(None, "Age at which segments are deleted; -1 is no limit.")
    log_retention_minutes = INT(None, "log.retention.ms in minutes, if log.retention.ms is unset.")
    log_retention_hours = INT("168", "log.retention.ms in hours, if it and log.retention.minutes are unset.")
    log_retention_bytes = LONG("-1", "Size of a partition above which old segments are deleted; -1 is no limit.")
    log_segment_delete_delay_ms = LONG("60000", "Delay before the files of deleted segments are removed.", "0..")
    log_retention_check_interval_ms = LONG("300000", "Interval at which retention runs.", "1..")
    log_cleaner_enable = BOOLEAN("true", "Whether the cleaner runs.")
    log_cleaner_threads = INT("1", "Number of logs that are compacted at the same time.", "0..")
    log_cleaner_backoff_ms = LONG("15000", "Pause of the cleaner when no log needs compaction.", "0..")
    log_cleaner_dedupe_buffer_size = LONG("134217728", "Memory for the key maps of all cleaner threads.")
    log_cleaner_io_buffer_load_factor = DOUBLE("0.9", "Largest load factor of a key map of the cleaner.")
    log_cleaner_io_max_bytes_per_second = DOUBLE("1.7976931348623157E308", "Bytes that the cleaner reads and writes.")
    log_cleaner_min_cleanable_ratio = DOUBLE("0.5", "Least dirty share of a log for compaction.", "0..1")
    log_cleaner_min_compaction_lag_ms = LONG("0", "Least age of a record for compaction.", "0..")
    log_cleaner_max_compaction_lag_ms = LONG("9223372036854775807", "Age at which a record is always compacted.", "1..")
    log_cleaner_delete_retention_ms = LONG("86400000", "Time for which a compacted topic keeps tombstones.", "0..")
    log_index_interval_bytes = INT("4096", "Bytes of log between two index entries.", "0..")
    log_index_size_max_bytes = INT("10485760", "Size of an index at which a new segment begins.", "4..")
    log_message_timestamp_type = STRING("CreateTime", "Clock of timestamps.", "in CreateTime,LogAppendTime")
    log_message_timestamp_before_max_ms = LONG("9223372036854775807", "Largest age of a timestamp in a batch.", "0..")
    log_message_timestamp_after_max_ms = LONG("3600000", "Time by which a timestamp may be ahead of the clock.", "0..")
    log_flush_interval_messages = LONG("9223372036854775807", "Records after which a partition is synced.", "1..")
    log_flush_interval_ms = LONG(None, "Time after which a partition is synced.")
    log_flush_scheduler_interval_ms = LONG("9223372036854775807", "Used if log.flush.interval.ms is unset.")
    log_flush_offset_checkpoint_interval_ms = INT("60000", "Interval at which recovery points are stored.", "0..")
    log_flush_start_offset_checkpoint_interval_ms = INT("60000", "Interval at which log starts are stored.", "0..")
    num_replica_fetchers = INT("1", "Requests at a time by which a broker copies partitions from one leader.", "1..")
    replica_fetch_backoff_ms = INT("1000", "Pause in ms before a replica fetches again after an error.", "0..")
    replica_fetch_max_bytes = INT("1048576", "Most bytes of one partition in a reply to a replica.", "0..")
    replica_fetch_min_bytes = INT("1", "Least bytes for which a reply to a replica waits.")
    replica_fetch_response_max_bytes = INT("10485760", "Most bytes of records in one reply to a replica.", "0..")
    replica_fetch_wait_max_ms = INT("500", "Longest wait in ms of a reply to a replica.")
    replica_selector_class = STRING(None, "How a leader chooses the replica that a consumer reads; empty: itself.")
    replica_lag_time_max_ms = LONG("30000", "Time in ms after which a replica that is behind leaves the ISR.")
    replica_socket_timeout_ms = INT("30000", "Time in ms in which a leader has to answer a replica.")
    request_timeout_ms = INT("30000", "Time in ms in which another broker has to answer about a transaction.")
    socket_connection_setup_timeout_ms = LONG("10000", "Time in ms after which an attempt to connect to a node ends.")
    replica_high_watermark_checkpoint_interval_ms = LONG("5000", "Interval at which high watermarks are stored.")
    metadata_log_max_record_bytes_between_snapshots = LONG("20971520", "Bytes between two snapshots.", "1..")
    metadata_log_max_snapshot_interval_ms = LONG("3600000", "Most time before a snapshot of changes; 0: never.", "0..")
    metadata_log_segment_bytes = INT("1073741824", "Size at which the metadata log begins a new segment.", "8388608..")
    metadata_log_segment_ms = LONG("604800000", "Age at which the metadata log begins a new segment.", "1..")
    metadata_max_retention_bytes = LONG("104857600", "Largest size of the metadata log and its snapshots.")
    metadata_max_retention_ms = LONG("604800000", "Age at which a snapshot, and the log before the next, is deleted.")
    producer_id_expiration_ms = INT("86400000", "Time after which the state of an inactive producer is removed.", "1..")
    producer_id_expiration_check_interval_ms = INT("600000", "Interval of the search for inactive producers.", "1..")
    fetch_max_bytes = INT("57671680", "Most bytes of records in one reply to a fetch.", "1024..")
    max_incremental_fetch_session_cache_slots = INT("1000", "Largest number of fetch sessions.", "0..")
    max_request_partition_size_limit = INT("2000", "Most partitions in one reply to DescribeTopicPartitions.", "1..")
    socket_request_max_bytes = INT("104857600", "Longest accepted request in bytes.", "1..")
    socket_listen_backlog_size = INT("50", "New connections that the operating system queues.", "1..")
    connections_max_idle_ms = LONG("600000", "Idle time after which a connection is closed.")
    max_connections = INT("2147483647", "Largest number of open connections.", "0..")
    max_connections_per_ip = INT("2147483647", "Largest number of open connections from one address.", "0..")
    max_connections_per_ip_overrides = STRING("", "Other limits for single hosts: host:count,127.0.0.1:count.")
    queued_max_request_bytes = LONG("33554432", "Memory for requests over 64 KiB; -1 (Kafka's default) is no limit.")
    offsets_topic_num_partitions = INT("50", "Partitions of __consumer_offsets.", "1..10000")
    offsets_topic_replication_factor = SHORT("1", "Replicas of __consumer_offsets. In a cluster and Kafka: 3.", "1..")
    offsets_topic_segment_bytes = INT("104857600", "Segment size of __consumer_offsets.", "1048576..")
    offsets_topic_compression_codec = INT("0", "Codec of offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", "0..4")
    group_consumer_min_session_timeout_ms = INT("45000", "Shortest session timeout that a group may set.", "1..")
    group_consumer_max_session_timeout_ms = INT("60000", "Longest session timeout that a group may set.", "1..")
    group_consumer_min_heartbeat_interval_ms = INT("5000", "Shortest heartbeat interval that a group may set.", "1..")
    group_consumer_max_heartbeat_interval_ms = INT("15000", "Longest heartbeat interval that a group may set.", "1..")
    group_consumer_min_assignment_interval_ms = INT("0", "Shortest assignment interval that a group may set.", "0..")
    group_consumer_max_assignment_interval_ms = INT("15000", "Longest assignment interval that a group may set.", "0..")
    transaction_state_log_num_partitions = INT("50", "Partitions of __transaction_state.", "1..10000")
    transaction_state_log_replication_factor = SHORT("1", "Replicas of __transaction_state. In a cluster: 3.", "1..")
    transaction_state_log_min_isr = INT("2", "min.insync.replicas of __transaction_state, at most its replicas.", "1..")
    transaction_state_log_segment_bytes = INT("104857600", "Segment size of __transaction_state.", "1048576..")
    transaction_partition_verification_enable = BOOLEAN("true", "Whether transactions of older producers are verified.")
    quota_window_num = INT("11", "Number of windows over which a client's rate is measured.", "1..")
    quota_window_size_seconds = INT("1", "Length of a window of quota.window.num.", "1..")
    controller_quota_window_num = INT("11", "Number of windows over which permits for partitions accumulate.", "1..")
    controller_quota_window_size_seconds = INT("1", "Length of a window of controller.quota.window.num.", "1..")


TOPIC = """
cleanup.policy | list | delete | list compact,delete | log.cleanup.policy
compression.type | string | producer | in uncompressed,zstd,lz4,snappy,gzip,producer | compression.type
compression.gzip.level | int | -1 | 1..9 or -1 | compression.gzip.level
compression.lz4.level | int | 9 | 1..17 | compression.lz4.level
compression.zstd.level | int | 3 | -131072..22 | compression.zstd.level
delete.retention.ms | long | 86400000 | 0.. | log.cleaner.delete.retention.ms
file.delete.delay.ms | long | 60000 | 0.. | log.segment.delete.delay.ms
flush.messages | long | 9223372036854775807 | 1.. | log.flush.interval.messages
flush.ms | long | 9223372036854775807 | 0.. | log.flush.interval.ms log.flush.scheduler.interval.ms
index.interval.bytes | int | 4096 | 0.. | log.index.interval.bytes
internal.segment.bytes | int | - |  |  | Segment size in place of segment.bytes, for tests; at least 512 bytes.
max.compaction.lag.ms | long | 9223372036854775807 | 1.. | log.cleaner.max.compaction.lag.ms
max.message.bytes | int | 1048588 | 0.. | message.max.bytes
message.timestamp.after.max.ms | long | 3600000 | 0.. | log.message.timestamp.after.max.ms
message.timestamp.before.max.ms | long | 9223372036854775807 | 0.. | log.message.timestamp.before.max.ms
message.timestamp.type | string | CreateTime | in CreateTime,LogAppendTime | log.message.timestamp.type
min.cleanable.dirty.ratio | double | 0.5 | 0..1 | log.cleaner.min.cleanable.ratio
min.compaction.lag.ms | long | 0 | 0.. | log.cleaner.min.compaction.lag.ms
min.insync.replicas | int | 1 | 1.. | min.insync.replicas
preallocate | boolean | false |  | log.preallocate
retention.bytes | long | -1 |  | log.retention.bytes
retention.ms | long | 604800000 | -1.. | log.retention.ms log.retention.minutes log.retention.hours
segment.bytes | int | 1073741824 | 1048576.. | log.segment.bytes
segment.index.bytes | int | 10485760 | 4.. | log.index.size.max.bytes
segment.jitter.ms | long | 0 | 0.. | log.roll.jitter.ms log.roll.jitter.hours
segment.ms | long | 604800000 | 1.. | log.roll.ms log.roll.hours
follower.replication.throttled.replicas | list | | replicas |
leader.replication.throttled.replicas | list | | replicas |
local.retention.bytes | long | -2 | -2.. | log.local.retention.bytes
local.retention.ms | long | -2 | -2.. | log.local.retention.ms
remote.log.copy.disable | boolean | false | |
remote.log.delete.on.disable | boolean | false | |
remote.storage.enable | boolean | false | |
unclean.leader.election.enable | boolean | false | | unclean.leader.election.enable
"""

TOPIC_INERT = {
    "compression.lz4.level": "The lz4 library of the broker has one compression level.",
    "preallocate": "Segment files grow as they are written.",
    "follower.replication.throttled.replicas": "Replication has no rate limit.",
    "leader.replication.throttled.replicas": "Replication has no rate limit.",
    "local.retention.bytes": "There is no tiered storage.",
    "local.retention.ms": "There is no tiered storage.",
    "remote.log.copy.disable": "There is no tiered storage.",
    "remote.log.delete.on.disable": "There is no tiered storage.",
    "remote.storage.enable": "There is no tiered storage.",
}
