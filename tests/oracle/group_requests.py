"""Functions that send the requests about groups: members of both protocols, offsets, administration, and the log.

Each member is a client with its own connection, so that one member can wait while others act.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from recording import Pending, Raw, Run
from support.whole_steps import group_hash

from odradek.batches.rows import iter_records
from odradek.codecs.offsets_topic import GroupRecord, decode, group_value
from odradek.codecs.schemas import RECORD_TYPES, decode_value, encode_value
from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.groups.kip848.metadata_hash import TopicFacts
from odradek.wire.api_keys import FETCH, LIST_OFFSETS

COMMIT, OFFSETS, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 13, 14, 15, 16
DELETE_TOPICS, DESCRIBE_CONFIGS, ADD_PARTITIONS, DELETE, ALTER_CONFIGS, OFFSET_DELETE = 20, 32, 37, 42, 44, 47
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
OFFSETS_TOPIC = "__consumer_offsets"
GROUP_RESOURCE = 32
RANGE = (("range", b""),)
OFFSET, GROUP_METADATA, GROUP_EPOCH, TARGET_MEMBER, CURRENT, PATTERN = 1, 2, 3, 7, 8, 16  # types of records
OF_MEMBERS = (5, 7, 8)
_HASH_AT = 9  # the bytes before the hash: version, epoch, number of tags, and the tag with its length

Topic = str | uuid.UUID
Protocols = Sequence[tuple[str, bytes]]


def subscription(*topics: str, version: int = 1, owned: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """The metadata of a consumer: its topics, no user data, and from version 1 on its owned partitions."""
    said = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    said += b"".join(_text(topic) for topic in topics) + b"\xff\xff\xff\xff"
    return said if version < 1 else said + _partitions(owned or {})


def assignment(partitions: Mapping[str, Sequence[int]], version: int = 1) -> bytes:
    """The assignment that a leader makes for a consumer."""
    return version.to_bytes(2, "big") + _partitions(partitions) + b"\xff\xff\xff\xff"


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def _partitions(owned: Mapping[str, Sequence[int]]) -> bytes:
    out = len(owned).to_bytes(4, "big")
    for topic, indexes in owned.items():
        out += _text(topic) + len(indexes).to_bytes(4, "big")
        out += b"".join(index.to_bytes(4, "big") for index in indexes)
    return out


class GroupRequests:
    """Requests about one group, whose coordinator is available."""

    def __init__(self, run: Run, label: str = "a") -> None:
        self.run = run
        self.group = run.fresh("group", label)
        self.wait_until_served()
        self.partition = partition_for_group(self.group, 50)
        self._begin = self._log_end()
        self._facts: dict[str, TopicFacts] = {}

    def wait_until_served(self) -> None:
        """Waits until the coordinator of the group is available."""
        self.run.until(FIND, 2, {"key": self.group, "key_type": 0}, lambda reply: reply.error_code == 0)
        self.run.until(DESCRIBE, 4, self._asked(), lambda reply: reply.groups[0].error_code in (0, 69))

    def _asked(self) -> dict[str, Any]:
        return {"groups": [self.group], "include_authorized_operations": False}

    def topic(self, label: str = "a", partitions: int = 1, **configs: str) -> str:
        """A new topic."""
        name = self.run.topic(label)
        self.name_subscription_hash(
            f"{label}:{partitions}", name, self.run.create(name, partitions, **configs), partitions
        )
        return name

    def known_topic(self, label: str = "a", partitions: int = 1) -> str:
        """A new topic that the group's coordinator knows."""
        name = self.topic(label, partitions)
        self.wait_until_known(name, partitions)
        return name

    def wait_until_known(self, topic: str, partitions: int) -> None:
        """Waits until the coordinator knows this number of partitions of the topic (0: the topic is deleted).

        A member joins a separate group with the same coordinator: the reply to its first heartbeat has all partitions
        that the coordinator knows.
        """
        probe = next(
            name
            for name in (f"probe-{number}-{topic}" for number in itertools.count())
            if partition_for_group(name, 50) == self.partition
        )
        first = self.minimal_heartbeat(rebalance_timeout=30_000, subscribed_topic_names=[topic], topic_partitions=[])
        last = self.minimal_heartbeat(member_epoch=-1)
        who = {"group_id": probe, "member_id": "probe"}

        def is_known(reply: Any) -> bool:
            assert reply.error_code is ErrorCode.none, reply
            self.run.quietly(CONSUMER_HEARTBEAT, 1, last | who)
            self.run.quietly(DELETE, 2, {"groups_names": [probe]})
            return sum(len(row.partitions) for row in reply.assignment.topic_partitions) == partitions

        self.run.until(CONSUMER_HEARTBEAT, 1, first | who, is_known)

    def wait_until_grown(self, label: str, topic: str, partitions: int) -> None:
        """Waits until the coordinator knows the larger number of partitions of the topic."""
        before = next(facts for facts in self._facts.values() if facts.name == topic)
        self._facts[f"{label}:{partitions}"] = before._replace(partition_count=partitions)
        self.wait_until_known(topic, partitions)

    def name_subscription_hash(self, label: str, name: str, topic_id: uuid.UUID, partitions: int) -> None:
        """Gives the current hash of subscriptions to this topic a name in the trace."""
        self._facts[label] = TopicFacts(name, topic_id.bytes, partitions)

    # --- offsets ------------------------------------------------------------------------------------------------

    def commit(
        self,
        *rows: tuple[Any, ...],
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 9,
        retention_ms: int = -1,
        client: str = "c",
        group: str | None = None,
    ) -> Any:
        """``rows``: (topic or its id, partition, offset[, metadata[, leader epoch]])."""
        topics: list[dict[str, Any]] = []
        for topic, given in itertools.groupby(rows, key=lambda row: row[0]):
            partitions = [_committed(*row[1:]) for row in given]
            topics.append({_name(topic): topic, "partitions": partitions})
        message = {
            "group_id": self.group if group is None else group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": instance,
            "retention_time": retention_ms,
            "topics": topics,
        }
        return self.run.call(COMMIT, version, message, client=client)

    def fetch(
        self,
        topics: Mapping[Topic, Sequence[int]] | None = None,
        *,
        version: int = 9,
        stable: bool = False,
        member: str | None = None,
        epoch: int = -1,
        groups: Sequence[str] | None = None,
        client: str = "c",
    ) -> Any:
        """``topics`` None: all topics."""
        rows = None if topics is None else [{_name(t): t, "partition_indexes": list(p)} for t, p in topics.items()]
        one = {"member_id": member, "member_epoch": epoch, "topics": rows}
        if version >= 8:
            asked = {"groups": [one | {"group_id": group} for group in groups or [self.group]]}
        else:
            asked = one | {"group_id": self.group}
        return self.run.call(OFFSETS, version, asked | {"require_stable": stable}, client=client,
                             unordered=("partitions", "topics"))  # fmt: skip

    def delete_offsets(self, topics: Mapping[str, Sequence[int]], group: str | None = None) -> Any:
        rows = [{"name": t, "partitions": [{"partition_index": i} for i in p]} for t, p in topics.items()]
        message = {"group_id": self.group if group is None else group, "topics": rows}
        return self.run.call(OFFSET_DELETE, 0, message, unordered=("partitions", "topics"))

    # --- the classic protocol -----------------------------------------------------------------------------------

    def join(
        self,
        client: str,
        member: str = "",
        *,
        version: int = 5,
        instance: str | None = None,
        protocols: Protocols = RANGE,
        session_ms: int = 10_000,
        rebalance_ms: int = 5000,
        kind: str = "consumer",
        group: str | None = None,
    ) -> Pending:
        message = {
            "group_id": self.group if group is None else group,
            "session_timeout": session_ms,
            "rebalance_timeout": rebalance_ms,
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": kind,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
            "reason": None,
        }
        pending = self.run.send(JOIN, version, message, client=client, unordered=("members",))
        self.wait_for_processing()
        return pending

    def sync(
        self,
        client: str,
        member: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        version: int = 3,
        instance: str | None = None,
        kind: str | None = "consumer",
        protocol: str | None = "range",
        group: str | None = None,
    ) -> Pending:
        rows = [{"member_id": to, "assignment": what} for to, what in (assignments or {}).items()]
        message = {
            "group_id": self.group if group is None else group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": kind,
            "protocol_name": protocol,
            "assignments": rows,
        }
        pending = self.run.send(SYNC, version, message, client=client)
        self.wait_for_processing()
        return pending

    def beat(
        self, client: str, member: str, generation: int, *, instance: str | None = None, version: int = 3,
        group: str | None = None,
    ) -> Any:  # fmt: skip
        message = {"group_id": self.group if group is None else group, "generation_id": generation,
                   "member_id": member, "group_instance_id": instance}  # fmt: skip
        return self.run.call(HEARTBEAT, version, message, client=client)

    def leave(self, *members: tuple[str, str | None], client: str = "c", version: int = 3) -> Any:
        """``members``: (member id, instance id)."""
        rows = [{"member_id": member, "group_instance_id": instance, "reason": None} for member, instance in members]
        message = {"group_id": self.group, "member_id": members[0][0] if members else "", "members": rows}
        return self.run.call(LEAVE, version, message, client=client)

    def wait_for_processing(self) -> None:
        """Gives the broker time to begin earlier requests of other connections. A client cannot see when the
        broker has begun them.

        Sends four requests: the broker may first have to accept a connection, and it serves connections in any order.
        """
        for _ in range(4):
            self.run.quietly(DESCRIBE, 4, self._asked())

    def wait_for_state(self, state: str) -> Any:
        """Waits until the group is in this state. The next request then meets the group in this state."""
        return self.run.until(DESCRIBE, 4, self._asked(), lambda reply: reply.groups[0].group_state == state)

    def wait_for_members(self, count: int) -> None:
        """Waits until a description of the group has this number of members."""
        self.run.until(DESCRIBE, 4, self._asked(), lambda reply: len(reply.groups[0].members) == count)

    # --- the KIP-848 protocol -----------------------------------------------------------------------------------

    def heartbeat(self, member: str, epoch: int, *, client: str = "c", version: int = 1, **said: Any) -> Any:
        """``said`` has other fields of the request. Its ``owned`` has the owned partitions by topic id."""
        owned = said.pop("owned", None)
        if owned is not None:
            by_name = sorted(owned.items(), key=lambda row: str(self.run.shown(row[0])))
            owned = [{"topic_id": topic_id, "partitions": list(indexes)} for topic_id, indexes in by_name]
        message = self.minimal_heartbeat(member_id=member, member_epoch=epoch, topic_partitions=owned)
        return self.run.call(CONSUMER_HEARTBEAT, version, message | said, client=client,
                             unordered=("partitions", "topic_partitions"))  # fmt: skip

    def minimal_heartbeat(self, **said: Any) -> dict[str, Any]:
        message = {
            "group_id": self.group,
            "member_id": "",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }
        return message | said

    def join_consumer(self, member: str, topics: Sequence[str] | None = None, **said: Any) -> Any:
        """Sends the first heartbeat of a member."""
        asked = {"rebalance_timeout": 30_000, "subscribed_topic_names": topics, "owned": {}} | said
        return self.heartbeat(member, 0, **asked)

    def set_group(self, **settings: str) -> None:
        """Changes settings of this group, and waits until its coordinator uses them.

        A broker applies changes in order. ``set_group`` changes a setting of another group afterwards. When that change
        is visible, the coordinator uses the settings of this group.
        """
        self._set(self.group, settings)
        self._set(f"beside-{self.group}", {"consumer_assignment_interval_ms": "1"})
        self._set(f"beside-{self.group}", {"consumer_assignment_interval_ms": "2"})

    def _set(self, group: str, settings: Mapping[str, str]) -> None:
        wanted = {key.replace("_", "."): value for key, value in settings.items()}
        configs = [{"name": key, "config_operation": 0, "value": value} for key, value in wanted.items()]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": group}
        asked = {"resources": [resource | {"configs": configs}], "validate_only": False}
        reply = self.run.quietly(ALTER_CONFIGS, 1, asked)
        assert reply.responses[0].error_code is ErrorCode.none, reply
        asked = {"resources": [resource | {"configuration_keys": list(wanted)}], "include_synonyms": False,
                 "include_documentation": False}  # fmt: skip

        def are_shown(reply: Any) -> bool:
            return {row.name: row.value for row in reply.results[0].configs} == wanted

        self.run.until(DESCRIBE_CONFIGS, 4, asked, are_shown)

    def wait_for_epoch(self, epoch: int) -> None:
        """Waits until the group has this epoch."""
        asked = {"group_ids": [self.group], "include_authorized_operations": False}
        self.run.until(CONSUMER_DESCRIBE, 1, asked, lambda reply: reply.groups[0].group_epoch == epoch)

    # --- administration -----------------------------------------------------------------------------------------

    def describe(self, version: int = 6, *groups: str, operations: bool = False) -> Any:
        message = {"groups": list(groups or [self.group]), "include_authorized_operations": operations}
        return self.run.call(DESCRIBE, version, message, unordered=("members", "groups"))

    def inspect(self, *groups: str, version: int = 1, operations: bool = False) -> Any:
        """ConsumerGroupDescribe."""
        message = {"group_ids": list(groups or [self.group]), "include_authorized_operations": operations}
        unordered = ("partitions", "topic_partitions", "subscribed_topic_names", "members", "groups")
        return self.run.call(CONSUMER_DESCRIBE, version, message, unordered=unordered)

    def listed(
        self, *groups: str, version: int = 5, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Any:  # fmt: skip
        """ListGroups. The trace contains only these groups (or this group)."""
        asked = {"states_filter": list(states), "types_filter": list(types)}
        reply = self.run.quietly(LIST, version, asked)
        mine = groups or (self.group,)
        found = sorted((row for row in reply.groups if row.group_id in mine), key=lambda row: mine.index(row.group_id))
        self.run.note("list_groups", asked | {"version": version}, [reply.error_code, found])
        return found

    def delete(self, *groups: str, version: int = 2) -> Any:
        message = {"groups_names": list(groups or [self.group])}
        return self.run.call(DELETE, version, message, unordered=("results",))

    # --- the log ------------------------------------------------------------------------------------------------

    def _log_end(self) -> int:
        parts = [{"partition_index": self.partition, "current_leader_epoch": -1, "timestamp": -1}]
        asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": OFFSETS_TOPIC, "partitions": parts}]}
        reply = self.run.until(LIST_OFFSETS, 6, asked, lambda r: r.topics[0].partitions[0].error_code == 0)
        end: int = reply.topics[0].partitions[0].offset
        return end

    def new_records(self) -> list[tuple[bytes, bytes | None]]:
        """Records of this group that were written since the previous call."""
        end, rows = self._log_end(), []
        while self._begin < end:
            part = {"partition": self.partition, "current_leader_epoch": -1, "fetch_offset": self._begin,
                    "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}  # fmt: skip
            asked = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
                     "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
                     "topics": [{"topic": OFFSETS_TOPIC, "partitions": [part]}]}  # fmt: skip
            reply = self.run.quietly(FETCH, 12, asked)
            for row in iter_records(bytes(reply.responses[0].partitions[0].records)):
                if row.offset >= self._begin:
                    self._begin = row.offset + 1
                    rows.append((row.key or b"", row.value))
        return [(key, value) for key, value in rows if _text(self.group) in key]

    def log(self, *, unordered: bool = False) -> None:
        """Adds to the trace, byte by byte, the records of the group since the previous call.

        The records are sorted by key if ``unordered``, and otherwise in the order of the log. Kafka writes some
        consecutive records in the order of a hash, so these are always sorted by key: those with one record for each
        member, and the tombstones of offsets.
        """
        rows = [{"key": Raw(key), "value": self._shown(key, value)} for key, value in self.new_records()]
        by_key: list[dict[str, Any]] = []
        for (kind, is_tombstone), alike in itertools.groupby(rows, key=_kind):
            run = list(alike)
            hashed = kind in OF_MEMBERS or is_tombstone
            by_key += sorted(run, key=self._key_shown) if hashed else run
        self.run.note("records", {"of": self.group}, sorted(rows, key=self._key_shown) if unordered else by_key)

    def _key_shown(self, row: Mapping[str, Any]) -> str:
        return str(self.run.shown(row["key"]))

    def _shown(self, key: bytes, value: bytes | None) -> Any:
        if value is None:
            return None
        kind = int.from_bytes(key[:2], "big")
        if kind == GROUP_EPOCH and len(value) > _HASH_AT:  # shorter values have no hash
            end = _HASH_AT + 8
            found = self._hash_name(int.from_bytes(value[_HASH_AT:end], "big", signed=True))
            return [Raw(value[:_HASH_AT]), found, Raw(value[end:])]
        if kind == PATTERN:  # it ends with the version of the topics, the time and the tags
            return [Raw(value[:-17]), "<version>", Raw(value[-9:])]
        if kind in (TARGET_MEMBER, CURRENT):
            return Raw(self._in_order(kind, value))
        if kind == GROUP_METADATA:
            return Raw(_in_order(key, value))
        return Raw(value)

    def _in_order(self, number: int, value: bytes) -> bytes:
        """Returns the record of an assignment with its topics and partitions sorted.

        Kafka writes them in the order of a hash.
        """
        kind = RECORD_TYPES[number]
        version, fields = decode_value(kind, value)
        assert encode_value(kind, version, fields) == value, "the record would be encoded differently"
        for name, rows in fields.items():
            if isinstance(rows, list):
                for row in rows:
                    _sort_partitions(row)
                fields[name] = sorted(
                    rows, key=lambda row: str(self.run.shown(uuid.UUID(bytes=bytes(row["topic_id"]))))
                )
        return encode_value(kind, version, fields)

    def _hash_name(self, value: int) -> str:
        for count in range(len(self._facts) + 1):
            for labels in itertools.combinations(self._facts, count):
                if group_hash(self._facts[label] for label in labels) == value:
                    return f"<hash of {', '.join(labels) or 'nothing'}>"
        return "<some hash>"


def _kind(row: Mapping[str, Any]) -> tuple[int, bool]:
    """The type of a record, and whether it is the tombstone of an offset."""
    number = int.from_bytes(row["key"][:2], "big")
    return number, number == OFFSET and row["value"] is None


def _sort_partitions(row: dict[str, Any]) -> None:
    """Sorts the partitions of a topic, together with the epochs in which they were assigned."""
    epochs = row.get("assignment_epochs")
    if epochs is not None:
        row["assignment_epochs"] = [epoch for _, epoch in sorted(zip(row["partitions"], epochs, strict=True))]
    row["partitions"].sort()


def _in_order(key: bytes, value: bytes) -> bytes:
    """Returns a group's record with its members sorted by client. Kafka writes them in the order of a hash."""
    decoded = decode(key, value)
    assert isinstance(decoded, GroupRecord)
    assert decoded.value is not None
    assert group_value(decoded.value) == value, "the record would be encoded differently"
    members = sorted(decoded.value.members, key=lambda member: (member.client_id, member.group_instance_id or ""))
    return group_value(decoded.value._replace(members=tuple(members)))


def _committed(index: int, offset: int, metadata: str | None = "", leader_epoch: int = -1) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "committed_metadata": metadata,
    }


def _name(topic: Topic) -> str:
    return "topic_id" if isinstance(topic, uuid.UUID) else "name"


class Member:
    """A classic member; ``client`` names it in the trace."""

    def __init__(self, requests: GroupRequests, client: str, *, instance: str | None = None, **joins_with: Any) -> None:
        self.requests, self.client, self.instance = requests, client, instance
        self.joins_with: dict[str, Any] = {"instance": instance, **joins_with}
        self.id = ""
        self.generation = -1
        self.names_used = 0

    def name_member(self, member_id: str) -> str:
        if member_id and member_id != self.id:
            self.requests.run.name_value(member_id, f"member {self.client}{chr(39) * self.names_used}")
            self.names_used += 1
            self.id = member_id
        return self.id

    def send_join(self, **other: Any) -> Pending:
        """Sends a join with the member's id. A new dynamic member first requests an id."""
        said = self.joins_with | other
        if not self.id and self.instance is None and said.get("version", 5) >= 4:
            self.name_member(self.requests.join(self.client, **said).receive().member_id)
        return self.requests.join(self.client, self.id, **said)

    def receive_join(self, pending: Pending) -> Any:
        """Receives the reply to a join, and keeps its member id and generation."""
        reply = pending.receive()
        self.name_member(reply.member_id)
        self.generation = reply.generation_id
        return reply

    def start_rebalance(self, **other: Any) -> Pending:
        """Sends a join, and waits until the group is in a rebalance."""
        pending = self.send_join(**other)
        self.requests.wait_for_state("PreparingRebalance")
        return pending

    def join(self, **other: Any) -> Any:
        return self.receive_join(self.send_join(**other))

    def join_as_new(self, **other: Any) -> Any:
        """Joins like a process that has lost its member id."""
        self.id = ""
        return self.join(**other)

    def syncing(self, assignments: Mapping[Member, bytes] | None = None, **other: Any) -> Pending:
        given = {member.id: what for member, what in (assignments or {}).items()}
        said = {"generation": self.generation, "instance": self.instance} | other
        return self.requests.sync(self.client, self.id, said.pop("generation"), given, **said)

    def sync(self, assignments: Mapping[Member, bytes] | None = None, **other: Any) -> Any:
        return self.syncing(assignments, **other).receive()

    def beat(self, generation: int | None = None, **other: Any) -> Any:
        said = self.generation if generation is None else generation
        fields = {"client": self.client, "instance": self.instance} | other
        return self.requests.beat(fields.pop("client"), self.id, said, **fields)

    def heartbeat_quietly(self) -> None:
        """Sends a heartbeat that is not in the trace."""
        message = {"group_id": self.requests.group, "generation_id": self.generation, "member_id": self.id,
                   "group_instance_id": self.instance}  # fmt: skip
        reply = self.requests.run.quietly(HEARTBEAT, 3, message, client=self.client)
        assert reply.error_code is ErrorCode.none, reply

    def leave(self, **other: Any) -> Any:
        return self.requests.leave((self.id, self.instance), **({"client": self.client} | other))

    def commit(self, *rows: tuple[Any, ...], **other: Any) -> Any:
        said = {"member": self.id, "generation": self.generation, "instance": self.instance, "client": self.client}
        return self.requests.commit(*rows, **(said | other))


class Consumer:
    """A KIP-848 member that chooses its id. It reports its owned partitions only in ``confirm``."""

    def __init__(self, requests: GroupRequests, member_id: str, *topics: str, **joins_with: Any) -> None:
        self.requests, self.id, self.client = requests, member_id, member_id
        self.joins_with: dict[str, Any] = {"subscribed_topic_names": list(topics)} if topics else {}
        self.joins_with |= joins_with
        self.instance = joins_with.get("instance_id")
        self.epoch = 0
        self.assigned: dict[uuid.UUID, list[int]] = {}

    def join(self, **other: Any) -> Any:
        self.epoch = 0
        return self.apply(self.requests.join_consumer(self.id, client=self.client, **(self.joins_with | other)))

    def beat(self, **other: Any) -> Any:
        said = {"epoch": self.epoch, "instance_id": self.instance} | other
        return self.apply(self.requests.heartbeat(self.id, said.pop("epoch"), client=self.client, **said))

    def heartbeat_quietly(self) -> None:
        """Sends a heartbeat that is not in the trace."""
        said = {"member_id": self.id, "member_epoch": self.epoch, "instance_id": self.instance}
        message = self.requests.minimal_heartbeat(**said)
        reply = self.requests.run.quietly(CONSUMER_HEARTBEAT, 1, message, client=self.client)
        assert reply.error_code is ErrorCode.none, reply
        self.apply(reply)

    def confirm(self, **other: Any) -> Any:
        """Sends a heartbeat that reports the newest assignment as the owned partitions."""
        return self.beat(owned=self.assigned, **other)

    def leave(self, epoch: int = -1, **other: Any) -> Any:
        return self.beat(epoch=epoch, **other)

    def apply(self, reply: Any) -> Any:
        if reply.error_code is ErrorCode.none and reply.member_epoch >= 0:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.assigned = {row.topic_id: sorted(row.partitions) for row in reply.assignment.topic_partitions}
        return reply

    def commit(self, *rows: tuple[Any, ...], **other: Any) -> Any:
        said = {"member": self.id, "generation": self.epoch, "instance": self.instance, "client": self.client}
        return self.requests.commit(*rows, **(said | other))

    def fetch(self, topics: Mapping[Topic, Sequence[int]] | None = None, **other: Any) -> Any:
        return self.requests.fetch(topics, **({"member": self.id, "epoch": self.epoch, "client": self.client} | other))


def stable(requests: GroupRequests, *members: Member, plan: Mapping[str, bytes] | None = None) -> None:
    """Makes a stable group of these members.

    The first member joins alone, because the coordinator does not wait for other members of an empty group. Then the
    other members join one after another, and all members get the same generation. Then they sync.
    """
    first, *others = members
    first.join()
    first.sync({first: (plan or {}).get(first.client, b"") if not others else b""})
    if not others:
        return
    waiting = []
    for number, other in enumerate(others):
        waiting.append(other.start_rebalance())
        requests.wait_for_members(number + 2)
    again = first.send_join()
    first.receive_join(again)
    for other, pending in zip(others, waiting, strict=True):
        other.receive_join(pending)
    given = {member: (plan or {}).get(member.client, member.client.encode()) for member in members}
    following = [other.syncing() for other in others]
    first.sync(given)
    for pending in following:
        pending.receive()


def join_both(leader: Member, newcomer: Member, **other: Any) -> None:
    """Makes a generation of both members, without a sync. The leader joins again after the newcomer's join."""
    waiting = newcomer.start_rebalance(**other)
    leader.join()
    newcomer.receive_join(waiting)


def two_stable(
    run: Run, *, instances: tuple[str | None, str | None] = (None, None), **joins_with: Any
) -> tuple[GroupRequests, Member, Member]:
    """A group with two members, both synced."""
    requests, a, b = _two(run, instances, joins_with)
    stable(requests, a, b)
    return requests, a, b


def two_unsynced(
    run: Run, *, instances: tuple[str | None, str | None] = (None, None), **joins_with: Any
) -> tuple[GroupRequests, Member, Member]:
    """A group with two members whose generation is not synced yet."""
    requests, a, b = _two(run, instances, joins_with)
    stable(requests, a)
    join_both(a, b)
    return requests, a, b


def _two(
    run: Run, instances: tuple[str | None, str | None], joins_with: Mapping[str, Any]
) -> tuple[GroupRequests, Member, Member]:
    requests = GroupRequests(run)
    a, b = (Member(requests, client, instance=of, **joins_with) for client, of in zip("ab", instances, strict=True))
    return requests, a, b


def joined(requests: GroupRequests, member_id: str, *topics: str, **joins_with: Any) -> Consumer:
    """A KIP-848 member that has sent its first heartbeat."""
    member = Consumer(requests, member_id, *topics, **joins_with)
    member.join()
    return member


def group_and_topic(run: Run, partitions: int = 1) -> tuple[GroupRequests, str]:
    """A group, and a topic that its coordinator knows."""
    requests = GroupRequests(run)
    return requests, requests.known_topic("a", partitions)


def pass_ms(run: Run, ms: int, *members: Member | Consumer, every_ms: int = 1000) -> None:
    """Lets time pass. Members continue with heartbeats, which are not in the trace."""
    while ms:
        step = min(ms, every_ms) if members else ms
        run.pass_ms(step)
        ms -= step
        for member in members:
            member.heartbeat_quietly()
