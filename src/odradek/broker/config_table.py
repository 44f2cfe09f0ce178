"""Every setting by Kafka's name: type, default, limits, what it does here.

A broker's row: ``name | type | default | limits | what it does``; a topic's: ``… | limits | falls back to``, the
broker settings whose values it takes while unset, first one first, and whose text it shares. The broker settings that
groups go by are declared in ``groups/config``, in rows of the same kind. A default of ``-``
means unset. Limits: ``a..b`` (either end may be open, `` or c`` behind it allows that value too), ``in x,y`` for one
of these, ``list x,y`` for a list of these, ``replicas`` for ``*`` or partition:broker pairs. Broker rows act; what is
accepted without effect is in ``config_ignored`` and ``TOPIC_INERT``, with the reason.
"""

BROKER = """
node.id | int | 1 | 0.. | This broker's id. Kafka has no default; a broker alone calls itself 1.
broker.id | int | -1 | | The older name of node.id.
broker.rack | string | - | | The rack this broker says it stands in.
listeners | list | PLAINTEXT://:9092 | | Where it listens; set by --listen.
advertised.listeners | list | - | | What clients are told, as PLAINTEXT://host:port.
log.dirs | list | - | | The data directory; set by --data-dir.
auto.create.topics.enable | boolean | true | | Whether asking for an unknown topic may create it.
delete.topic.enable | boolean | true | | Whether topics can be deleted.
num.partitions | int | 1 | 1.. | Partitions of a topic created without a number.
default.replication.factor | int | 1 | | Replicas of a topic created without a number.
message.max.bytes | int | 1048588 | 0.. | The longest record batch taken.
compression.type | string | producer | in uncompressed,zstd,lz4,snappy,gzip,producer | The codec of stored batches.
compression.gzip.level | int | -1 | 1..9 or -1 | How hard gzip tries where the broker compresses; -1 is its own choice.
compression.zstd.level | int | 3 | -131072..22 | How hard zstd tries where the broker compresses.
log.cleanup.policy | list | delete | list compact,delete | What becomes of old records.
log.segment.bytes | int | 1073741824 | 1048576.. | Size at which a new segment file begins.
log.roll.ms | long | - | 1.. | Age at which a new segment begins.
log.roll.hours | int | 168 | 1.. | The same in hours, where log.roll.ms is unset.
log.roll.jitter.ms | long | - | 0.. | By how much sooner, at most; each segment has its own.
log.roll.jitter.hours | int | 0 | 0.. | The same in hours, where log.roll.jitter.ms is unset.
log.retention.ms | long | - | | Age at which segments are deleted; -1 never.
log.retention.minutes | int | - | | The same in minutes, where log.retention.ms is unset.
log.retention.hours | int | 168 | | The same in hours, where both are unset.
log.retention.bytes | long | -1 | | Size of a partition above which old segments are deleted; -1 no limit.
log.segment.delete.delay.ms | long | 60000 | 0.. | How long the files of what was deleted stay on the disk.
log.retention.check.interval.ms | long | 300000 | 1.. | How often retention looks.
log.cleaner.enable | boolean | true | | Whether compacted topics are compacted.
log.cleaner.threads | int | 1 | 0.. | Logs that are compacted at a time.
log.cleaner.backoff.ms | long | 15000 | 0.. | How long the cleaner rests when nothing is due.
log.cleaner.dedupe.buffer.size | long | 134217728 | | Memory for the map of keys of all threads.
log.cleaner.io.buffer.load.factor | double | 0.9 | | How full that map may get.
log.cleaner.io.max.bytes.per.second | double | 1.7976931348623157E308 | | The most the cleaner reads and writes.
log.cleaner.min.cleanable.ratio | double | 0.5 | 0..1 | Share of a log that is dirty before it is compacted.
log.cleaner.min.compaction.lag.ms | long | 0 | 0.. | Age below which a record is not compacted.
log.cleaner.max.compaction.lag.ms | long | 9223372036854775807 | 1.. | Age at which a record is compacted in any case.
log.cleaner.delete.retention.ms | long | 86400000 | 0.. | How long a compacted topic keeps tombstones.
log.index.interval.bytes | int | 4096 | 0.. | Bytes of log between two index entries.
log.index.size.max.bytes | int | 10485760 | 4.. | Size at which an index is full, and a new segment begins.
log.message.timestamp.type | string | CreateTime | in CreateTime,LogAppendTime | Whose clock stamps records.
log.message.timestamp.before.max.ms | long | 9223372036854775807 | 0.. | How far in the past a record's time may lie.
log.message.timestamp.after.max.ms | long | 3600000 | 0.. | How far in the future a record's time may lie.
log.flush.interval.messages | long | 9223372036854775807 | 1.. | Records after which a partition is forced to disk.
log.flush.interval.ms | long | - | | Time after which a partition is forced to disk.
log.flush.scheduler.interval.ms | long | 9223372036854775807 | | Stands in where log.flush.interval.ms is unset.
log.flush.offset.checkpoint.interval.ms | int | 60000 | 0.. | How often recovery points are written down.
log.flush.start.offset.checkpoint.interval.ms | int | 60000 | 0.. | How often log starts are written down.
metadata.log.max.record.bytes.between.snapshots | long | 20971520 | 1.. | Bytes between two snapshots of the catalogue.
metadata.log.max.snapshot.interval.ms | long | 3600000 | 0.. | Age at which a changed catalogue gets one; 0 never.
metadata.log.segment.bytes | int | 1073741824 | 8388608.. | Size at which the catalogue's log begins a new segment.
metadata.log.segment.ms | long | 604800000 | 1.. | Age at which it does.
metadata.max.retention.bytes | long | 104857600 | | Size of that log and its snapshots above which the oldest go.
metadata.max.retention.ms | long | 604800000 | | Age at which a snapshot, with the log before the next, goes.
producer.id.expiration.ms | int | 86400000 | 1.. | Time after which a silent producer's sequences are forgotten.
fetch.max.bytes | int | 57671680 | 1024.. | The most one fetch gives.
max.incremental.fetch.session.cache.slots | int | 1000 | 0.. | Fetch sessions kept at a time.
max.request.partition.size.limit | int | 2000 | 1.. | Partitions in one answer of DescribeTopicPartitions.
socket.request.max.bytes | int | 104857600 | 1.. | The longest request taken.
socket.listen.backlog.size | int | 50 | 1.. | Connections the system queues for us.
connections.max.idle.ms | long | 600000 | | Idle time after which a connection is closed.
max.connections | int | 2147483647 | 0.. | Connections at a time.
max.connections.per.ip | int | 2147483647 | 0.. | Connections at a time from one address.
max.connections.per.ip.overrides | string | | | Other numbers for single hosts: host:count,127.0.0.1:count.
queued.max.request.bytes | long | 134217728 | | Memory for unfinished requests; -1 no limit, which is Kafka's default.
offsets.topic.num.partitions | int | 50 | 1.. | Partitions of __consumer_offsets.
offsets.topic.replication.factor | short | 1 | 1.. | Its replicas. Kafka's 3 is beyond one broker.
offsets.topic.segment.bytes | int | 104857600 | 1.. | Segment size of __consumer_offsets.
offsets.topic.compression.codec | int | 0 | 0..4 | Codec of batches of commits: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
group.consumer.min.session.timeout.ms | int | 45000 | 1.. | The shortest a group may set for itself.
group.consumer.max.session.timeout.ms | int | 60000 | 1.. | The longest.
group.consumer.min.heartbeat.interval.ms | int | 5000 | 1.. | The shortest a group may set for itself.
group.consumer.max.heartbeat.interval.ms | int | 15000 | 1.. | The longest.
group.consumer.min.assignment.interval.ms | int | 0 | 0.. | The shortest a group may set for itself.
group.consumer.max.assignment.interval.ms | int | 15000 | 0.. | The longest.
quota.window.num | int | 11 | 1.. | Windows over which a client's rate is taken.
quota.window.size.seconds | int | 1 | 1.. | Length of each of them.
controller.quota.window.num | int | 11 | 1.. | Windows whose permits to create and delete partitions add up.
controller.quota.window.size.seconds | int | 1 | 1.. | Length of each of them.
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
internal.segment.bytes | int | - |  |  | Segment size without the lower limit, for tests.
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
    "min.insync.replicas": "Capped at the number of replicas, as in Kafka 4.3, so one broker always meets it.",
    "compression.lz4.level": "The lz4 in use has one level.",
    "preallocate": "Segment files grow as they are written.",
    "follower.replication.throttled.replicas": "One broker has no followers and no other leader.",
    "leader.replication.throttled.replicas": "One broker has no followers and no other leader.",
    "unclean.leader.election.enable": "One broker has no followers and no other leader.",
    "local.retention.bytes": "There is no tiered storage.",
    "local.retention.ms": "There is no tiered storage.",
    "remote.log.copy.disable": "There is no tiered storage.",
    "remote.log.delete.on.disable": "There is no tiered storage.",
    "remote.storage.enable": "There is no tiered storage.",
}
