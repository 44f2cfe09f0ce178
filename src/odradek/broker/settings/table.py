"""Tables of settings: Kafka's name, type, default, limits and documentation.

A broker setting's row is ``name | type | default | limits | documentation``. A topic setting's row is ``name | type |
default | limits | fallbacks | documentation``. The fallbacks are broker settings. If a topic does not set the value,
the first fallback with a value applies. A row without documentation has that of its first fallback. A default of ``-``
means unset.

Limits: ``a..b`` is a range, which may be open at either end; ``a..b or c`` also allows c. ``in x,y`` is one of these
values, ``list x,y`` a list of them. ``replicas`` is ``*`` or a list of partition:broker pairs.

``offsets.topic.segment.bytes`` and ``transaction.state.log.segment.bytes`` have the lower limit of ``segment.bytes``.
The numbers of partitions of these topics have the upper limit of a request (``MAX_PARTITIONS_PER_REQUEST``). Kafka
also starts with values outside these limits, but then its controller refuses to create the topic, so there is no
coordinator.

``BROKER`` has only settings with an effect; rows of the same form are in ``groups/config`` and ``transactions/config``.
Settings without an effect are in ``ignored`` and ``TOPIC_INERT``, with the reason.
"""

NO_SUCH_GROUPS = "The broker has no groups of this kind yet."
"""The reason why settings of share and streams groups have no effect."""

BROKER = """
node.id | int | 1 | 0.. | Id of this broker. Kafka has no default.
broker.id | int | -1 | | Older name of node.id.
broker.rack | string | - | | Rack that this broker reports.
process.roles | list | - | list broker,controller | Roles of a node of a cluster; unset: a lone broker.
controller.quorum.voters | list |  |  | The controller of the cluster, as NODE@HOST:PORT.
controller.listener.names | list | - | | Listeners of the controller, e.g. CONTROLLER.
inter.broker.listener.name | string | - | | Listener by which other brokers connect.
security.inter.broker.protocol | string | PLAINTEXT | in PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL | Name and protocol of \
the listener by which other brokers connect, in place of inter.broker.listener.name.
sasl.mechanism.controller.protocol | string | GSSAPI | | Mechanism of the broker's own login at a controller with SASL.
sasl.mechanism.inter.broker.protocol | string | GSSAPI | | Mechanism of the broker's own login at other brokers.
broker.heartbeat.interval.ms | int | 2000 | | Interval in ms of a broker's heartbeats to its controller.
broker.session.timeout.ms | int | 9000 | | Time in ms without a heartbeat after which the controller fences a broker.
initial.broker.registration.timeout.ms | int | 60000 | | Time in ms in which a broker has to register; then it ends.
metadata.max.idle.interval.ms | int | 500 | 0.. | Time in ms without a change after which a controller writes an empty \
record, by which brokers see that they have all; 0: never.
auto.leader.rebalance.enable | boolean | true | | Whether a controller elects first replicas again that may lead.
leader.imbalance.check.interval.seconds | long | 300 | 1.. | Interval in s of these elections.
unclean.leader.election.enable | boolean | false | | Whether a replica that may lack records leads if no other can.
unclean.leader.election.interval.ms | long | 300000 | 1.. | Interval in ms of the unclean elections that a topic allows.
min.insync.replicas | int | 1 | 1.. | Fewest in-sync replicas for writes with acks=all, at most the number of replicas.
listeners | list | PLAINTEXT://:9092 | | Listening addresses, as NAME://host:port, in place of --listen.
advertised.listeners | list | - | | Addresses that clients of each listener get, as NAME://host:port.
listener.security.protocol.map | string | \
SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT | | Security protocol of each listener.
config.providers | list |  |  | Sources of variables in settings, such as ${env:NAME}; the start alone reads them.
sasl.enabled.mechanisms | list | GSSAPI | | Mechanisms of the listeners with SASL.
sasl.jaas.config | password | - | | Users of PLAIN, and the login of this node at others, with the prefixes \
of a listener and of the mechanism.
sasl.oauthbearer.clock.skew.seconds | int | 30 | | Allowed difference of clocks for the times of tokens, in s.
sasl.oauthbearer.expected.audience | list |  | | A token has to name one of these audiences; empty: it may name none.
sasl.oauthbearer.expected.issuer | string | - | | Issuer of tokens; unset: every issuer.
sasl.oauthbearer.jwks.endpoint.refresh.ms | long | 3600000 | | How often the keys of tokens are read again, in ms.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | long | 10000 | | Longest pause in ms after a failure; also the \
shortest time between readings that unknown keys cause.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | long | 100 | | First pause in ms after a failure.
sasl.oauthbearer.jwks.endpoint.url | string | - | | File or address of the keys of tokens, file:///PATH or https://….
sasl.oauthbearer.scope.claim.name | string | scope | | Claim of a token with its scopes.
sasl.oauthbearer.sub.claim.name | string | sub | | Claim of a token with the name of the user.
sasl.server.callback.handler.class | class | - | | Kafka's class that checks tokens; with the prefixes of a listener \
and of oauthbearer.
sasl.server.max.receive.size | int | 524288 | 1.. | Longest request in bytes before the end of a login.
ssl.allow.dn.changes | boolean | false | | Whether a new certificate of a listener may have another subject.
ssl.allow.san.changes | boolean | false | | Whether a new certificate may lack alternative names of the former one.
ssl.cipher.suites | list |  |  | Cipher suites of TLS 1.2, by Java's names; empty: those of OpenSSL.
ssl.client.auth | string | none | in required,requested,none | Whether clients need a certificate.
ssl.enabled.protocols | list | TLSv1.2,TLSv1.3 |  | Versions of TLS.
ssl.key.password | password | - |  | Password of an encrypted private key.
ssl.keystore.certificate.chain | password | - |  | Certificates in PEM, in place of a file.
ssl.keystore.key | password | - |  | Private key in PEM, in place of a file.
ssl.keystore.location | string | - |  | File with the private key and the certificate.
ssl.keystore.password | password | - |  | Password of a PKCS12 file.
ssl.keystore.type | string | JKS |  | PEM or PKCS12. JKS, Kafka's default, also reads PKCS12.
ssl.principal.mapping.rules | string | DEFAULT |  | Rules that make user names of certificates' names.
ssl.protocol | string | TLSv1.3 |  | TLSv1.2 allows no TLS 1.3.
ssl.truststore.certificates | password | - |  | Trusted certificates in PEM, in place of a file.
ssl.truststore.location | string | - |  | File with the certificates that clients are trusted by.
ssl.truststore.password | password | - |  | Password of a PKCS12 file.
ssl.truststore.type | string | JKS |  | PEM or PKCS12. JKS, Kafka's default, also reads PKCS12.
connections.max.reauth.ms | long | 0 | | Time in ms after which a client has to log in again; 0 is no limit.
connection.failed.authentication.delay.ms | int | 100 | 0.. | Time in ms for which the reply to a refused login waits.
delegation.token.expiry.check.interval.ms | long | 3600000 | 1.. | How often delegation tokens that have ended are \
removed, in ms.
delegation.token.expiry.time.ms | long | 86400000 | 1.. | Life of a delegation token without a renewal, in ms.
delegation.token.max.lifetime.ms | long | 604800000 | 1.. | Longest life of a delegation token, in ms.
delegation.token.secret.key | password | - | | Key of the secrets of delegation tokens; without it there are none.
log.dirs | list | - | | Data directory; set by --data-dir.
authorizer.class.name | string | | | Class of the authorizer, Kafka's StandardAuthorizer; empty: no authorizer.
auto.create.topics.enable | boolean | true | | Whether a Metadata request may create an unknown topic.
delete.topic.enable | boolean | true | | Whether topics can be deleted.
num.partitions | int | 1 | 1.. | Partitions of a topic that is created without a partition count.
default.replication.factor | int | 1 | | Replicas of a topic that is created without a replication factor.
message.max.bytes | int | 1048588 | 0.. | Longest accepted record batch in bytes.
compression.type | string | producer | in uncompressed,zstd,lz4,snappy,gzip,producer | Codec of stored batches.
compression.gzip.level | int | -1 | 1..9 or -1 | gzip level if the broker compresses; -1 is gzip's default.
compression.zstd.level | int | 3 | -131072..22 | zstd level if the broker compresses.
log.cleanup.policy | list | delete | list compact,delete | Deletion or compaction of old records.
log.segment.bytes | int | 1073741824 | 1048576.. | Size in bytes at which a new segment begins.
log.roll.ms | long | - | 1.. | Age at which a new segment begins.
log.roll.hours | int | 168 | 1.. | log.roll.ms in hours, if log.roll.ms is unset.
log.roll.jitter.ms | long | - | 0.. | Largest random reduction of the age for a new segment, drawn for each segment.
log.roll.jitter.hours | int | 0 | 0.. | log.roll.jitter.ms in hours, if log.roll.jitter.ms is unset.
log.retention.ms | long | - | | Age at which segments are deleted; -1 is no limit.
log.retention.minutes | int | - | | log.retention.ms in minutes, if log.retention.ms is unset.
log.retention.hours | int | 168 | | log.retention.ms in hours, if log.retention.ms and log.retention.minutes are unset.
log.retention.bytes | long | -1 | | Size of a partition above which old segments are deleted; -1 is no limit.
log.segment.delete.delay.ms | long | 60000 | 0.. | Delay before the files of deleted segments are removed from the disk.
log.retention.check.interval.ms | long | 300000 | 1.. | Interval at which retention runs.
log.cleaner.enable | boolean | true | | Whether the cleaner runs.
log.cleaner.threads | int | 1 | 0.. | Number of logs that are compacted at the same time.
log.cleaner.backoff.ms | long | 15000 | 0.. | Pause of the cleaner when no log needs compaction.
log.cleaner.dedupe.buffer.size | long | 134217728 | | Memory for the key maps of all cleaner threads.
log.cleaner.io.buffer.load.factor | double | 0.9 | | Largest load factor of a key map of the cleaner.
log.cleaner.io.max.bytes.per.second | double | 1.7976931348623157E308 | | Most bytes that the cleaner reads and writes.
log.cleaner.min.cleanable.ratio | double | 0.5 | 0..1 | Least dirty share of a log for compaction.
log.cleaner.min.compaction.lag.ms | long | 0 | 0.. | Least age of a record for compaction.
log.cleaner.max.compaction.lag.ms | long | 9223372036854775807 | 1.. | Age at which a record is always compacted.
log.cleaner.delete.retention.ms | long | 86400000 | 0.. | Time for which a compacted topic keeps tombstones.
log.index.interval.bytes | int | 4096 | 0.. | Bytes of log between two index entries.
log.index.size.max.bytes | int | 10485760 | 4.. | Size of an index at which a new segment begins.
log.message.timestamp.type | string | CreateTime | in CreateTime,LogAppendTime | Clock of timestamps.
log.message.timestamp.before.max.ms | long | 9223372036854775807 | 0.. | Largest age of a timestamp in a new batch.
log.message.timestamp.after.max.ms | long | 3600000 | 0.. | Most time by which a timestamp may be ahead of the clock.
log.flush.interval.messages | long | 9223372036854775807 | 1.. | Records after which a partition is flushed to disk.
log.flush.interval.ms | long | - | | Time after which a partition is flushed to disk.
log.flush.scheduler.interval.ms | long | 9223372036854775807 | | Used if log.flush.interval.ms is unset.
log.flush.offset.checkpoint.interval.ms | int | 60000 | 0.. | Interval at which recovery points are stored.
log.flush.start.offset.checkpoint.interval.ms | int | 60000 | 0.. | Interval at which log start offsets are stored.
num.replica.fetchers | int | 1 | 1.. | Requests at a time by which a broker copies partitions from one leader.
replica.fetch.backoff.ms | int | 1000 | 0.. | Pause in ms before a replica fetches again after an error.
replica.fetch.max.bytes | int | 1048576 | 0.. | Most bytes of one partition in a reply to a replica.
replica.fetch.min.bytes | int | 1 | | Least bytes for which a reply to a replica waits.
replica.fetch.response.max.bytes | int | 10485760 | 0.. | Most bytes of records in one reply to a replica.
replica.fetch.wait.max.ms | int | 500 | | Longest wait in ms of a reply to a replica.
replica.selector.class | string | - | | How a leader chooses the replica that a consumer reads, or empty: always itself.
replica.lag.time.max.ms | long | 30000 | | Time in ms after which a replica that is behind leaves the ISR.
replica.socket.timeout.ms | int | 30000 | | Time in ms in which a leader has to answer a replica.
request.timeout.ms | int | 30000 | | Time in ms in which another broker has to answer about a transaction.
socket.connection.setup.timeout.ms | long | 10000 | | Time in ms after which an attempt to connect to another node ends.
replica.high.watermark.checkpoint.interval.ms | long | 5000 | | Interval at which high watermarks are stored.
metadata.log.max.record.bytes.between.snapshots | long | 20971520 | 1.. | Bytes between two snapshots of the catalogue.
metadata.log.max.snapshot.interval.ms | long | 3600000 | 0.. | Most time before a snapshot of changes; 0: never.
metadata.log.segment.bytes | int | 1073741824 | 8388608.. | Size at which the metadata log begins a new segment.
metadata.log.segment.ms | long | 604800000 | 1.. | Age at which the metadata log begins a new segment.
metadata.max.retention.bytes | long | 104857600 | | Largest size of the metadata log and its snapshots.
metadata.max.retention.ms | long | 604800000 | | Age at which a snapshot, and the log before the next one, is deleted.
producer.id.expiration.ms | int | 86400000 | 1.. | Time after which the state of an inactive producer is removed.
producer.id.expiration.check.interval.ms | int | 600000 | 1.. | Interval of the search for inactive producers.
fetch.max.bytes | int | 57671680 | 1024.. | Most bytes of records in one reply to a fetch.
max.incremental.fetch.session.cache.slots | int | 1000 | 0.. | Largest number of fetch sessions.
max.request.partition.size.limit | int | 2000 | 1.. | Most partitions in one reply to DescribeTopicPartitions.
socket.request.max.bytes | int | 104857600 | 1.. | Longest accepted request in bytes.
socket.listen.backlog.size | int | 50 | 1.. | New connections that the operating system queues.
connections.max.idle.ms | long | 600000 | | Idle time after which a connection is closed.
max.connections | int | 2147483647 | 0.. | Largest number of open connections.
max.connections.per.ip | int | 2147483647 | 0.. | Largest number of open connections from one address.
max.connections.per.ip.overrides | string | | | Other limits for single hosts: host:count,127.0.0.1:count.
queued.max.request.bytes | long | 33554432 | | Memory for requests over 64 KiB; -1 (Kafka's default) is no limit.
offsets.topic.num.partitions | int | 50 | 1..10000 | Partitions of __consumer_offsets.
offsets.topic.replication.factor | short | 1 | 1.. | Replicas of __consumer_offsets. In a cluster, and in Kafka: 3.
offsets.topic.segment.bytes | int | 104857600 | 1048576.. | Segment size of __consumer_offsets.
offsets.topic.compression.codec | int | 0 | 0..4 | Codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
group.consumer.min.session.timeout.ms | int | 45000 | 1.. | Shortest session timeout that a group may set.
group.consumer.max.session.timeout.ms | int | 60000 | 1.. | Longest session timeout that a group may set.
group.consumer.min.heartbeat.interval.ms | int | 5000 | 1.. | Shortest heartbeat interval that a group may set.
group.consumer.max.heartbeat.interval.ms | int | 15000 | 1.. | Longest heartbeat interval that a group may set.
group.consumer.min.assignment.interval.ms | int | 0 | 0.. | Shortest assignment interval that a group may set.
group.consumer.max.assignment.interval.ms | int | 15000 | 0.. | Longest assignment interval that a group may set.
transaction.state.log.num.partitions | int | 50 | 1..10000 | Partitions of __transaction_state.
transaction.state.log.replication.factor | short | 1 | 1.. | Replicas of __transaction_state. In a cluster: 3.
transaction.state.log.min.isr | int | 2 | 1.. | min.insync.replicas of __transaction_state, capped at its replicas.
transaction.state.log.segment.bytes | int | 104857600 | 1048576.. | Segment size of __transaction_state.
transaction.partition.verification.enable | boolean | true | | Whether transactions of older producers are verified.
quota.window.num | int | 11 | 1.. | Number of windows over which a client's rate is measured.
quota.window.size.seconds | int | 1 | 1.. | Length of a window of quota.window.num.
controller.quota.window.num | int | 11 | 1.. | Number of windows over which permits for partition changes accumulate.
controller.quota.window.size.seconds | int | 1 | 1.. | Length of a window of controller.quota.window.num.
"""

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
