"""The group coordinator without sockets: its runtime, shards and handlers in a simulated world.

``GroupHarness.call`` passes a request through encode, decode, handler and runtime, and its reply back, as a connection
does. ``GroupHarness.start`` does not wait for the reply. Time passes only in ``GroupHarness.advance``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib import import_module
from types import GeneratorType, SimpleNamespace
from typing import Any
from uuid import UUID

from odradek.batches.header import HEADER_BYTES
from odradek.broker.coordinators.group_coordinator import GROUPS
from odradek.broker.coordinators.group_runtime import GroupRuntime
from odradek.broker.coordinators.registry import Coordinator
from odradek.broker.handlers import handler_files
from odradek.broker.limits.quotas import Quotas
from odradek.broker.loop.leftovers import Leftovers
from odradek.broker.loop.scheduler import SHARE_S, Scheduler, Task
from odradek.broker.metadata.brokers import BrokerAddress
from odradek.broker.settings.config import BrokerConfig
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.metadata_hash import TopicFacts
from odradek.groups.shard import GroupShard
from odradek.wire import schemas
from odradek.wire.chunks import joined
from odradek.wire.schemas import Kind
from support.world import Process, World
from support.world_log import WorldLog

_GROUP_APIS = {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69}
HANDLERS = {
    api.key: (import_module(f"odradek.broker.handlers.{api.name}"), api.versions)
    for api in handler_files()
    if api.key in _GROUP_APIS
}


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer: version 1, its topics, no user data, no owned partitions."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + bytes(4)


@dataclass
class FakeTopic:
    name: str
    id: UUID
    partition_count: int


class FakeCatalog:
    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}

    def add(self, name: str, partition_count: int = 4) -> FakeTopic:
        number = len(self.topics) + 1
        self.topics[name] = FakeTopic(name, UUID(int=number << 64 | number), partition_count)
        return self.topics[name]

    def remove(self, name: str) -> None:
        del self.topics[name]

    def topic(self, name: str) -> FakeTopic | None:
        return self.topics.get(name)

    def features(self) -> dict[str, int]:
        return {"group.version": 1}

    def topic_by_id(self, topic_id: UUID | None) -> FakeTopic | None:
        return next((topic for topic in self.topics.values() if topic.id == topic_id), None)


class HarnessGroupCatalog:
    """What groups see: the catalogue's topics, and ``settings`` of single groups by (group, name)."""

    def __init__(self, catalog: FakeCatalog) -> None:
        self._catalog = catalog
        self.version = 0
        self.settings: dict[tuple[str, str], str] = {}

    def topic(self, name: str) -> TopicFacts | None:
        return self._facts(self._catalog.topic(name))

    def topic_by_id(self, topic_id: bytes) -> TopicFacts | None:
        return self._facts(self._catalog.topic_by_id(UUID(bytes=topic_id)))

    def topic_names(self) -> list[str]:
        return list(self._catalog.topics)

    def group_setting(self, group_id: str, name: str) -> str | None:
        return self.settings.get((group_id, name))

    @staticmethod
    def _facts(topic: FakeTopic | None) -> TopicFacts | None:
        return None if topic is None else TopicFacts(topic.name, topic.id.bytes, topic.partition_count)


class Pending:
    """A request in progress. ``reply`` is the decoded reply, once ``answered``."""

    def __init__(self, api_key: int, version: int) -> None:
        self._api = (api_key, version)
        self._data: bytes | None = None

    def take(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Deferred):
            answer.then(self.take)
            return
        if isinstance(answer, list):
            packed = joined(answer)
        else:
            packed = answer if isinstance(answer, bytes) else schemas.encode(*self._api, Kind.RESPONSE, answer)
        assert self._data is None, "answered twice"
        self._data = packed

    @property
    def answered(self) -> bool:
        return self._data is not None

    @property
    def reply(self) -> Any:
        assert self._data is not None, "not answered"
        message, size = schemas.decode(*self._api, Kind.RESPONSE, self._data)
        assert size == len(self._data)
        return message


class HarnessGroups(Coordinator[GroupRuntime]):
    """The group coordinator of the harness. The offsets topic exists from the start, but not in the catalogue."""

    @property
    def has_topic(self) -> bool:
        return True


class GroupHarness:
    """The part of a broker that the group handlers use. A test may pass its own kind of shard and of log."""

    node_id = 1
    authorizer = None
    quotas = Quotas(BrokerConfig(), lambda: 0)

    def __init__(
        self,
        config: GroupConfig | None = None,
        partition_count: int = 2,
        *,
        shard_type: type[GroupShard] = GroupShard,
        log_type: type[WorldLog] = WorldLog,
    ) -> None:
        self.config = config or GroupConfig()
        self._shard_type = shard_type
        self.world = World()
        self.process = Process(self.world)
        self.catalog = FakeCatalog()
        self.partitions = [log_type(self.world, index) for index in range(partition_count)]
        self.uuids = itertools.count(1)
        self.reply_bytes: list[int] = []
        """The bytes that handlers have counted for long replies."""
        self.group_catalog = HarnessGroupCatalog(self.catalog)
        self.start_process()

    def restart(self) -> None:
        """Restarts as after kill -9: state that is not in the log is lost."""
        self.process.kill()
        for partition in self.partitions:
            partition.crash()
        self.process = Process(self.world)
        self.start_process()

    def start_process(self) -> None:
        self.scheduler = Scheduler(self.process.call_soon, lambda: 0.0)  # with this clock no share of the loop ends
        self.leftovers = Leftovers(self.scheduler.start)
        self.runtime = GroupRuntime(
            self.config,
            self.process.environment(),
            topic_id=self.topic_id,
            catalog=self.group_catalog,
            shard_type=self._shard_type,
        )
        groups = HarnessGroups(GROUPS, self)  # a harness has fewer parts than a broker
        groups.made_runtime = self.runtime
        self.coordinators = SimpleNamespace(of_key_type={groups.type.key_type: groups}.get)
        self.runtime.partition_count = len(self.partitions)
        for index, partition in enumerate(self.partitions):
            self.runtime.load(index, partition, 0)
        self.world.settle()

    def topic_id(self, name: str) -> bytes | None:
        topic = self.catalog.topic(name)
        return None if topic is None else topic.id.bytes

    # --- services for handlers --------------------------------------------------------------------------------

    @property
    def groups(self) -> GroupRuntime:
        return self.runtime

    @property
    def brokers(self) -> Any:
        address = BrokerAddress(self.node_id, "localhost", 9092, None)
        return SimpleNamespace(reachable_one=lambda broker_id, request: address if broker_id == self.node_id else None)

    def new_uuid(self) -> UUID:
        return UUID(int=next(self.uuids))

    def now_ms(self) -> int:
        return self.world.now_ms

    # --- actions of tests -------------------------------------------------------------------------------------

    def submit(self, api_key: int, version: int, message: dict[str, Any], client_id: str = "test") -> Pending:
        """Submits a request without ending the tick."""
        module, (oldest, newest) = HANDLERS[api_key]
        assert oldest <= version <= newest
        packed = schemas.encode(api_key, version, Kind.REQUEST, message)
        decoded, _ = schemas.decode(api_key, version, Kind.REQUEST, packed)
        context = SimpleNamespace(
            api_key=api_key, version=version, client_id=client_id, client_host="/127.0.0.1", connection=None,
            grow_reply=self.reply_bytes.append,
        )  # fmt: skip
        pending = Pending(api_key, version)
        answer = module.handle(self, context, decoded)
        if isinstance(answer, GeneratorType):
            answer = self._promise(answer)
        if isinstance(answer, Deferred):
            answer.then(pending.take)
        else:
            pending.take(answer)
        return pending

    def _promise(self, steps: Any) -> Deferred[Any]:
        """Runs the first steps of a handler's generator at once, like the router."""
        task: Task[Any] = Task(self.scheduler, steps)
        if task.run_share(self.scheduler.clock() + SHARE_S):
            self.scheduler.add(task)
        return task.promise

    def start(self, api_key: int, version: int, client_id: str = "test", **message: Any) -> Pending:
        pending = self.submit(api_key, version, message, client_id)
        self.world.settle()
        return pending

    def call(self, api_key: int, version: int, **message: Any) -> Any:
        return self.start(api_key, version, **message).reply

    def advance(self, by_ms: int) -> None:
        self.world.advance(by_ms)

    def partition_of(self, group_id: str) -> WorldLog:
        return self.partitions[self.runtime.partition_of(group_id)]

    def shard(self, group_id: str) -> Any:
        shard = self.runtime.shard(self.runtime.partition_of(group_id))
        assert shard is not None
        return shard

    def commit(
        self,
        group_id: str,
        topic: str,
        offsets: dict[int, int],
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 9,
        metadata: str | None = "",
        leader_epoch: int = -1,
        retention_ms: int = -1,
    ) -> dict[int, ErrorCode]:
        """Commits offsets by partition. Returns the error of each."""
        found = self.catalog.topic(topic)
        rows = [
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_leader_epoch": leader_epoch,
                "committed_metadata": metadata,
            }
            for index, offset in offsets.items()
        ]
        reply = self.call(
            8,
            version,
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time=retention_ms,
            topics=[{"name": topic, "topic_id": None if found is None else found.id, "partitions": rows}],
        )
        return {row.partition_index: row.error_code for row in reply.topics[0].partitions}

    def join(
        self,
        group_id: str,
        member: str = "",
        *,
        instance: str | None = None,
        version: int = 9,
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        topics: tuple[str, ...] = ("t",),
        metadata: bytes | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client_id: str = "test",
    ) -> Pending:
        """Starts a JoinGroup."""
        said = subscription(*topics) if metadata is None else metadata
        return self.start(
            11,
            version,
            client_id,
            group_id=group_id,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[{"name": name, "metadata": said} for name in protocols],
            session_timeout=session_ms,
            rebalance_timeout=rebalance_ms,
            reason=None,
        )

    def member(self, group_id: str, **how: Any) -> str:
        """Returns the id of a new dynamic member, which has not joined with this id yet."""
        reply = self.join(group_id, **how).reply
        assert reply.error_code is ErrorCode.member_id_required
        return str(reply.member_id)

    def sync(
        self,
        group_id: str,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        version: int = 5,
        protocol: str = "range",
    ) -> Pending:
        """Starts a SyncGroup."""
        return self.start(
            14,
            version,
            group_id=group_id,
            member_id=member,
            generation_id=generation,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=protocol,
            assignments=[{"member_id": name, "assignment": share} for name, share in (assignments or {}).items()],
        )

    def heartbeat(self, group_id: str, member: str, generation: int, instance: str | None = None) -> ErrorCode:
        reply = self.call(
            12, 4, group_id=group_id, member_id=member, generation_id=generation, group_instance_id=instance
        )
        return ErrorCode(reply.error_code)

    def leave(self, group_id: str, *members: str, instance: str | None = None) -> list[ErrorCode]:
        leaving = [{"member_id": member, "group_instance_id": instance, "reason": None} for member in members]
        reply = self.call(13, 5, group_id=group_id, members=leaving)
        return [ErrorCode(member.error_code) for member in reply.members]

    def state(self, group_id: str) -> str:
        return str(self.call(15, 5, groups=[group_id], include_authorized_operations=False).groups[0].group_state)

    def stable(self, group_id: str, count: int = 1, **how: Any) -> list[str]:
        """Makes a new Stable group of ``count`` members and returns their ids. The first is the leader; assignments are
        ``b"<id>"``."""
        members: list[str] = []
        for _ in range(count):
            joiner = self.member(group_id, **how)
            joins = [self.join(group_id, joiner, **how)]
            joins += [self.join(group_id, member, **how) for member in members]
            members.append(joiner)
            generation = joins[0].reply.generation_id
            shares = {member: member.encode() for member in members}
            syncs = [self.sync(group_id, member, generation, shares) for member in members]
            assert all(sync.reply.error_code is ErrorCode.none for sync in syncs)
        assert self.state(group_id) == "Stable"
        return members

    def generation(self, group_id: str) -> int:
        return int(self.shard(group_id).groups[group_id].generation)

    def offset(self, group_id: str, topic: str, partition: int) -> int:
        """The offset in the reply to OffsetFetch; -1 for none."""
        reply = self.call(9, 5, group_id=group_id, topics=[{"name": topic, "partition_indexes": [partition]}])
        return int(reply.topics[0].partitions[0].committed_offset)


assert HEADER_BYTES == 61
