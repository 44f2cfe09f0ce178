"""Kafka's settings without effect in this broker, by reason: ``name | type | Kafka's default | limits``.

The broker accepts them, except for those that ``protection`` refuses.
"""

from odradek.broker.settings.table import NO_SUCH_GROUPS

INERT: dict[str, str] = {
    "The broker has no such mechanism of authentication, authorisation or encryption yet.": """
early.start.listeners | list | -
principal.builder.class | class | -
sasl.client.callback.handler.class | class | -
sasl.kerberos.kinit.cmd | string | /usr/bin/kinit
sasl.kerberos.min.time.before.relogin | long | 60000
sasl.kerberos.principal.to.local.rules | list | DEFAULT
sasl.kerberos.service.name | string | -
sasl.kerberos.ticket.renew.jitter | double | 0.05
sasl.kerberos.ticket.renew.window.factor | double | 0.8
sasl.login.callback.handler.class | class | -
sasl.login.class | class | -
sasl.login.connect.timeout.ms | int | -
sasl.login.read.timeout.ms | int | -
sasl.login.refresh.buffer.seconds | short | 300
sasl.login.refresh.min.period.seconds | short | 60
sasl.login.refresh.window.factor | double | 0.8
sasl.login.refresh.window.jitter | double | 0.05
sasl.login.retry.backoff.max.ms | long | 10000
sasl.login.retry.backoff.ms | long | 100
sasl.oauthbearer.assertion.algorithm | string | RS256
sasl.oauthbearer.assertion.claim.aud | string | -
sasl.oauthbearer.assertion.claim.exp.seconds | int | 300 | 0..86400
sasl.oauthbearer.assertion.claim.iss | string | -
sasl.oauthbearer.assertion.claim.jti.include | boolean | false
sasl.oauthbearer.assertion.claim.nbf.seconds | int | 60 | 0..3600
sasl.oauthbearer.assertion.claim.sub | string | -
sasl.oauthbearer.assertion.file | string | -
sasl.oauthbearer.assertion.private.key.file | string | -
sasl.oauthbearer.assertion.private.key.passphrase | password | -
sasl.oauthbearer.assertion.template.file | string | -
sasl.oauthbearer.client.credentials.client.id | string | -
sasl.oauthbearer.client.credentials.client.secret | password | -
sasl.oauthbearer.jwt.retriever.class | class | -
sasl.oauthbearer.jwt.validator.class | class | -
sasl.oauthbearer.scope | string | -
sasl.oauthbearer.token.endpoint.url | string | -
security.providers | string | -
ssl.endpoint.identification.algorithm | string | https
ssl.engine.factory.class | class | -
ssl.keymanager.algorithm | string | SunX509
ssl.provider | string | -
ssl.secure.random.implementation | string | -
ssl.trustmanager.algorithm | string | PKIX
""",
    "The broker replies to EndTxn when all online partitions have their markers. It does not repeat AddPartitions.": """
add.partitions.to.txn.retry.backoff.max.ms | int | 100 | 0..
add.partitions.to.txn.retry.backoff.ms | int | 20 | 1..
""",
    "Two-phase commit needs InitProducerId 6, which Apache Kafka 4.3 does not serve by default either.": """
transaction.two.phase.commit.enable | boolean | false
""",
    "Classic and KIP-848 groups are always enabled. The broker has no share or streams groups yet.": """
group.coordinator.rebalance.protocols | list | classic,consumer,streams | list consumer,classic,share,streams
""",
    NO_SUCH_GROUPS: """
group.share.assignment.interval.ms | int | 1000 | 0..
group.share.assignors | list | simple
group.share.delivery.count.limit | int | 5 | 2..10
group.share.heartbeat.interval.ms | int | 5000 | 1..
group.share.max.assignment.interval.ms | int | 15000 | 0..
group.share.max.delivery.count.limit | int | 10 | 5..25
group.share.max.heartbeat.interval.ms | int | 15000 | 1..
group.share.max.partition.max.record.locks | int | 4000 | 2000..10000
group.share.max.record.lock.duration.ms | int | 60000 | 30000..3600000
group.share.max.session.timeout.ms | int | 60000 | 1..
group.share.max.share.sessions | int | 2000 | 1..
group.share.max.size | int | 200 | 1..1000
group.share.min.assignment.interval.ms | int | 0 | 0..
group.share.min.delivery.count.limit | int | 2 | 2..5
group.share.min.heartbeat.interval.ms | int | 5000 | 1..
group.share.min.partition.max.record.locks | int | 100 | 100..2000
group.share.min.record.lock.duration.ms | int | 15000 | 1000..30000
group.share.min.session.timeout.ms | int | 45000 | 1..
group.share.partition.max.record.locks | int | 2000 | 100..10000
group.share.record.lock.duration.ms | int | 30000 | 1000..3600000
group.share.session.timeout.ms | int | 45000 | 1..
group.streams.assignment.interval.ms | int | 1000 | 0..
group.streams.heartbeat.interval.ms | int | 5000 | 1..
group.streams.initial.rebalance.delay.ms | int | 3000 | 0..
group.streams.max.assignment.interval.ms | int | 15000 | 0..
group.streams.max.heartbeat.interval.ms | int | 15000 | 1..
group.streams.max.session.timeout.ms | int | 60000 | 1..
group.streams.max.size | int | 2147483647 | 1..
group.streams.max.standby.replicas | int | 2 | 0..
group.streams.min.assignment.interval.ms | int | 0 | 0..
group.streams.min.heartbeat.interval.ms | int | 5000 | 1..
group.streams.min.session.timeout.ms | int | 45000 | 1..
group.streams.num.standby.replicas | int | 0 | 0..
group.streams.session.timeout.ms | int | 45000 | 1..
share.coordinator.append.linger.ms | int | -1 | -1..
share.coordinator.cached.buffer.max.bytes | int | 1048588 | 524288..
share.coordinator.load.buffer.size | int | 5242880 | 1..
share.coordinator.snapshot.update.records.per.snapshot | int | 500 | 0..500
share.coordinator.state.topic.compression.codec | int | 0
share.coordinator.state.topic.min.isr | short | 2 | 1..
share.coordinator.state.topic.num.partitions | int | 50 | 1..
share.coordinator.state.topic.replication.factor | short | 3 | 1..
share.coordinator.state.topic.segment.bytes | int | 104857600 | 1..
share.coordinator.threads | int | 1 | 1..
share.coordinator.write.timeout.ms | int | 5000 | 1..
share.fetch.purgatory.purge.interval.requests | int | 1000
""",
    "There is no tiered storage.": """
follower.fetch.last.tiered.offset.enable | boolean | false
log.local.retention.bytes | long | -2 | -2..
log.local.retention.ms | long | -2 | -2..
remote.fetch.max.wait.ms | int | 500 | 1..
remote.list.offsets.request.timeout.ms | long | 30000 | 1..
remote.log.index.file.cache.total.size.bytes | long | 1073741824 | 1..
remote.log.manager.copier.thread.pool.size | int | 10 | 1..
remote.log.manager.copy.max.bytes.per.second | long | 9223372036854775807 | 1..
remote.log.manager.copy.quota.window.num | int | 11 | 1..
remote.log.manager.copy.quota.window.size.seconds | int | 1 | 1..
remote.log.manager.expiration.thread.pool.size | int | 10 | 1..
remote.log.manager.fetch.max.bytes.per.second | long | 9223372036854775807 | 1..
remote.log.manager.fetch.quota.window.num | int | 11 | 1..
remote.log.manager.fetch.quota.window.size.seconds | int | 1 | 1..
remote.log.manager.follower.thread.pool.size | int | 2 | 1..
remote.log.manager.task.interval.ms | long | 30000 | 1..
remote.log.manager.thread.pool.size | int | 2 | 1..
remote.log.metadata.custom.metadata.max.bytes | int | 128 | 0..
remote.log.metadata.manager.class.name | string | -
remote.log.metadata.manager.class.path | string | -
remote.log.metadata.manager.impl.prefix | string | rlmm.config.
remote.log.metadata.manager.listener.name | string | -
remote.log.reader.max.pending.tasks | int | 100 | 1..
remote.log.reader.threads | int | 10 | 1..
remote.log.storage.manager.class.name | string | -
remote.log.storage.manager.class.path | string | -
remote.log.storage.manager.impl.prefix | string | rsm.config.
remote.log.storage.system.enable | boolean | false
""",
    "A cluster has one controller: there is no election of controllers.": """
controller.quorum.append.linger.ms | int | 25 | 0..
controller.quorum.auto.join.enable | boolean | false
controller.quorum.election.backoff.max.ms | int | 1000 | 0..
controller.quorum.election.timeout.ms | int | 1000 | 0..
controller.quorum.fetch.max.bytes | int | 1048576 | 1..
controller.quorum.fetch.snapshot.max.bytes | int | 1048576 | 1..
controller.quorum.fetch.timeout.ms | int | 2000 | 0..
controller.quorum.request.timeout.ms | int | 2000 | 0..
controller.quorum.retry.backoff.ms | int | 20 | 0..
controller.socket.timeout.ms | int | 30000
metadata.log.dir | string | -
""",
    "A node finds its controller by controller.quorum.voters.": """
controller.quorum.bootstrap.servers | list |
""",
    "Replication has no rate limit.": """
replication.quota.window.num | int | 11 | 1..
replication.quota.window.size.seconds | int | 1 | 1..
""",
    "One event loop serves all requests, with its own limits.": """
background.threads | int | 10 | 1..
delete.records.purgatory.purge.interval.requests | int | 1
fetch.purgatory.purge.interval.requests | int | 1000
num.io.threads | int | 8 | 1..
num.network.threads | int | 3 | 1..
producer.purgatory.purge.interval.requests | int | 1000
queued.max.requests | int | 500 | 1..
""",
    "The only limit on new connections per second is the quota of each address.": """
max.connection.creation.rate | int | 2147483647 | 0..
""",
    "The operating system sizes socket buffers.": """
replica.socket.receive.buffer.bytes | int | 65536
socket.receive.buffer.bytes | int | 102400
socket.send.buffer.bytes | int | 102400
""",
    "The broker loads no plug-in classes. odradek serve --metrics has its metrics.": """
alter.config.policy.class.name | class | -
client.quota.callback.class | class | -
create.topic.policy.class.name | class | -
kafka.metrics.polling.interval.secs | int | 10 | 1..
kafka.metrics.reporters | list |
metric.reporters | list | -
metrics.num.samples | int | 2 | 1..
metrics.recording.level | string | INFO
metrics.sample.window.ms | long | 30000 | 1..
telemetry.max.bytes | int | 1048576 | 1..
""",
    "The cleaner reads in steps of a fixed size.": """
log.cleaner.io.buffer.size | int | 524288 | 0..
""",
    "A coordinator appends once per tick of the event loop and loads its log in steps of a fixed size.": """
group.coordinator.append.linger.ms | int | -1 | -1..
group.coordinator.background.threads | int | 2 | 1..
group.coordinator.cached.buffer.max.bytes | int | 1048588 | 524288..
group.coordinator.threads | int | 4 | 1..
offsets.load.buffer.size | int | 5242880 | 1..
transaction.state.log.load.buffer.size | int | 5242880 | 1..
""",
    "The broker closes sixteen logs at a time. It recovers one log at a time, because recovery uses a whole core.": """
num.recovery.threads.per.data.dir | int | 2 | 1..
""",
    "A broker of a cluster always hands over its partitions before it stops.": """
controlled.shutdown.enable | boolean | true
""",
    "An attempt to connect to another node has the same time limit each time.": """
socket.connection.setup.timeout.max.ms | long | 30000
""",
    "The broker has one data directory, set by --data-dir.": """
alter.log.dirs.replication.quota.window.num | int | 11 | 1..
alter.log.dirs.replication.quota.window.size.seconds | int | 1 | 1..
cordoned.log.dirs | list |
log.dir.failure.timeout.ms | long | 30000 | 1..
num.replica.alter.log.dirs.threads | int | -
log.dir | list | /tmp/kafka-logs
""",
    "The lz4 library of the broker has one compression level.": """
compression.lz4.level | int | 9 | 1..17
""",
    "Segment files grow as they are written.": """
log.preallocate | boolean | false
""",
}

# Dynamic settings that Kafka's tools set and remove, and that are unset by default.
WHILE_RUNNING = """
leader.replication.throttled.rate | long | - | 0..
follower.replication.throttled.rate | long | - | 0..
replica.alter.log.dirs.io.max.bytes.per.second | long | - | 0..
"""
# Kafka's settings for its own tests. DescribeConfigs lists them only if they are set.
INTERNAL = """
controller.performance.always.log.threshold.ms | long | 2000 | 0..
controller.performance.sample.period.ms | long | 60000 | 100..
group.share.initialize.retry.interval.ms | int | 30000 | 1..
group.share.persister.class.name | string | org.apache.kafka.server.share.persister.DefaultStatePersister
internal.metadata.delete.delay.millis | long | 60000
internal.metadata.log.segment.bytes | int | -
internal.metadata.max.batch.size.in.bytes | int | 8388608
log.initial.task.delay.ms | long | 30000 | 0..
remote.log.index.file.cache.ttl.ms | long | 900000 | -1..
remote.log.manager.task.retry.backoff.max.ms | long | 30000 | 1..
remote.log.manager.task.retry.backoff.ms | long | 500 | 1..
remote.log.manager.task.retry.jitter | double | 0.2 | 0..0.5
server.max.startup.time.ms | long | 9223372036854775807 | 0..
share.coordinator.cold.partition.snapshot.interval.ms | int | 300000 | 1..
share.coordinator.state.topic.prune.interval.ms | int | 300000 | 1..
unstable.api.versions.enable | boolean | false
unstable.feature.versions.enable | boolean | false
"""
INERT["Only for Kafka's own tests."] = INTERNAL
_NO_RATE_LIMIT = "Replication has no rate limit."
INERT[_NO_RATE_LIMIT] += WHILE_RUNNING.lstrip()
