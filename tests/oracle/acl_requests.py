"""Requests of every API about resources that exist and resources that do not, for the comparison of authorizers.

No request changes anything, whatever its client is allowed to do: it only validates, names what does not exist, or has
a fault that is found after the questions to the authorizer. So one broker serves the requests of all users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord

HERE, GONE, OTHER = "data.here", "data.gone", "other"
"""An existing resource, a missing one, and an existing one that no ACL names except a wildcard."""
MODERN = "data.modern"
"""A KIP-848 group with a member that reads ``HERE``."""
STRANGE = "data.#"
"""No valid name of a topic."""
UNKNOWN_ID = UUID(int=77)
STRANGER = "stranger"
EVERYTHING = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
_FILTER = EVERYTHING | {"resource_name_filter": None, "principal_filter": "User:stranger", "host_filter": None}


class AclCase(NamedTuple):
    """A request. ``name`` has the API, the version and what is special about it."""

    name: str
    api_key: int
    version: int
    message: dict[str, Any]


def damaged_batch(*, transactional: bool = False) -> bytes:
    """A record batch with a wrong checksum: the broker refuses it after all questions."""
    batch = bytearray(encode_batch([SimpleRecord(None, b"x")], now_ms=1))
    if transactional:
        batch[22] |= 0x10
    batch[17] ^= 0xFF
    return bytes(batch)


def cases(here: UUID) -> list[AclCase]:
    """All requests. ``here``: the id of the topic ``HERE``."""
    found: list[AclCase] = []

    def add(api_key: int, version: int, message: dict[str, Any], what: str = "") -> None:
        found.append(AclCase(f"{api_key} v{version} {what}".strip(), api_key, version, message))

    for part in (_records, _offsets, _groups, _transactions, _topics, _settings, _cluster):
        part(add, here)
    return found


Add = Callable[..., None]


def _records(add: Add, here: UUID) -> None:
    def produced(transactional: bool) -> list[dict[str, Any]]:
        records = damaged_batch(transactional=transactional)
        return [{"index": 0, "records": records}]

    names = (HERE, GONE, OTHER)
    for version, who in ((12, None), (12, HERE), (9, GONE)):
        data = [{"name": name, "partition_data": produced(who is not None)} for name in names]
        message = {"transactional_id": who, "acks": 1, "timeout": 1000, "topic_data": data}
        add(0, version, message, f"by {who}")
    by_id = [{"topic_id": each, "partition_data": produced(False)} for each in (here, UNKNOWN_ID)]
    add(0, 13, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": by_id})
    fetched = {"max_wait": 0, "min_bytes": 1, "max_bytes": 100, "isolation_level": 0, "session_id": 0}
    fetched |= {"session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    place = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
    place |= {"log_start_offset": -1, "partition_max_bytes": 100}
    add(1, 12, fetched | {"replica_id": -1, "topics": [{"topic": name, "partitions": [place]} for name in names]})
    add(1, 18, fetched | {"topics": [{"topic_id": each, "partitions": [place]} for each in (here, UNKNOWN_ID)]})
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    listed = {"replica_id": -1, "isolation_level": 0, "timeout": 1000}
    add(2, 10, listed | {"topics": [{"name": name, "partitions": asked} for name in names]})
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    add(23, 4, {"replica_id": -1, "topics": [{"topic": name, "partitions": epochs} for name in names]})
    add(21, 2, {"topics": [{"name": n, "partitions": [{"partition_index": 0, "offset": 0}]} for n in names],
                "timeout": 1000})  # fmt: skip
    add(61, 0, {"topics": [{"name": name, "partition_indexes": [0, 9]} for name in (*names, STRANGE)]})


def _offsets(add: Add, here: UUID) -> None:
    def committed(group: str, version: int) -> dict[str, Any]:
        rows = [{"partition_index": n, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
                for n in (0, 9)]  # fmt: skip
        keys = [{"name": n} for n in (HERE, GONE)] if version < 10 else [{"topic_id": i} for i in (here, UNKNOWN_ID)]
        topics = [key | {"partitions": rows} for key in keys]
        who = {"generation_id_or_member_epoch": 5, "member_id": STRANGER, "group_instance_id": None}
        return who | {"group_id": group, "topics": topics}

    for version in (9, 10):
        for group in (HERE, GONE):
            add(8, version, committed(group, version), group)
    for group in (HERE, GONE):
        for version in (1, 5, 7):
            topics = [{"name": name, "partition_indexes": [0, 1]} for name in (HERE, GONE)]
            stable = {"require_stable": False} if version >= 7 else {}
            add(9, version, {"group_id": group, "topics": topics} | stable, group)
        add(9, 7, {"group_id": group, "topics": None, "require_stable": False}, f"all of {group}")
        add(47, 0, {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": 9}]}
                                                 for name in (HERE, GONE)]}, group)  # fmt: skip
    by_name = [{"name": name, "partition_indexes": [0, 1]} for name in (HERE, GONE)]
    by_id = [{"topic_id": each, "partition_indexes": [0, 1]} for each in (here, UNKNOWN_ID)]
    member = {"member_id": None, "member_epoch": -1}
    for version, topics in ((9, by_name), (10, by_id), (9, None), (10, None)):
        groups = [{"group_id": group, "topics": topics} | member for group in (HERE, GONE)]
        add(9, version, {"groups": groups, "require_stable": False}, "all" if topics is None else "")


def _groups(add: Add, here: UUID) -> None:
    for version, keys in ((3, None), (6, [HERE, GONE])):
        for kind, what in ((0, "group"), (1, "transaction")):
            message = {"key": HERE, "key_type": kind} if keys is None else {"key_type": kind, "coordinator_keys": keys}
            add(10, version, message, what)
    for group in (HERE, GONE):
        who = {"group_id": group, "member_id": STRANGER, "group_instance_id": None}
        generation = who | {"generation_id": 5}
        joined = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer", "reason": None}
        add(11, 9, who | joined | {"protocols": [{"name": "range", "metadata": b""}]}, group)
        add(12, 4, generation, group)
        add(13, 2, {"group_id": group, "member_id": STRANGER}, group)
        leaver = {"member_id": STRANGER, "group_instance_id": None, "reason": None}
        add(13, 5, {"group_id": group, "members": [leaver]}, group)
        add(14, 5, generation | {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}, group)
        beat = {"member_epoch": 5, "instance_id": None, "rack_id": None, "rebalance_timeout": -1}
        beat |= {"group_id": group, "member_id": STRANGER, "server_assignor": None, "topic_partitions": None}
        for topics in ([HERE], [GONE], None):
            add(68, 1, beat | {"subscribed_topic_names": topics, "subscribed_topic_regex": None}, f"{group} {topics}")
    add(15, 6, {"groups": [HERE, GONE], "include_authorized_operations": True})
    add(15, 2, {"groups": [HERE, GONE]})
    add(16, 5, {"states_filter": [], "types_filter": []})
    add(42, 2, {"groups_names": [HERE, GONE]})
    add(69, 1, {"group_ids": [MODERN, GONE], "include_authorized_operations": True})


def _transactions(add: Add, here: UUID) -> None:
    producer = {"producer_id": 999, "producer_epoch": 0}
    for name in (HERE, GONE):
        who = {"transactional_id": name} | producer
        add(22, 5, who | {"transaction_timeout": 2_000_000_000}, name)
        add(24, 3, {"v3_and_below_transactional_id": name, "v3_and_below_producer_id": 999,
                    "v3_and_below_producer_epoch": 0,
                    "v3_and_below_topics": [{"name": n, "partitions": [0]} for n in (HERE, OTHER)]}, name)  # fmt: skip
        add(25, 4, who | {"group_id": HERE}, name)
        add(26, 5, who | {"committed": True}, name)
        rows = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}]
        topics = [{"name": topic, "partitions": rows} for topic in (HERE, GONE)]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        add(28, 5, who | member | {"group_id": HERE, "topics": topics}, name)
    add(24, 3, {"v3_and_below_transactional_id": HERE, "v3_and_below_producer_id": 999,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": n, "partitions": [0]} for n in (HERE, GONE)]}, "gone")  # fmt: skip
    add(24, 5, {"transactions": [{"transactional_id": GONE, "verify_only": True,
                                 "topics": [{"name": GONE, "partitions": [0]}]} | producer]})  # fmt: skip
    add(22, 5, {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": 0})
    marker = {"transaction_result": True, "coordinator_epoch": 0,
              "topics": [{"name": GONE, "partition_indexes": [0]}]} | producer  # fmt: skip
    add(27, 1, {"markers": [marker]})
    add(65, 0, {"transactional_ids": [HERE, GONE]})
    add(66, 1, {"state_filters": [], "producer_id_filters": [], "duration_filter": -1})


def _topics(add: Add, here: UUID) -> None:
    named = [{"topic_id": None, "name": name} for name in (HERE, GONE)]
    quiet = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
    both = quiet | {"include_cluster_authorized_operations": True}
    add(3, 9, both | {"topics": [{"name": name} for name in (HERE, GONE)]})
    add(3, 13, quiet | {"topics": named})
    add(3, 13, quiet | {"topics": [{"topic_id": each, "name": None} for each in (here, UNKNOWN_ID)]}, "by id")
    add(3, 13, quiet | {"topics": None}, "all")
    add(3, 13, quiet | {"topics": [{"topic_id": None, "name": STRANGE}], "allow_auto_topic_creation": True}, "create")
    wanted = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [wanted | {"name": name} for name in (HERE, GONE, STRANGE)]
    add(19, 7, {"topics": topics, "timeout": 1000, "validate_only": True})
    add(20, 5, {"topic_names": [GONE], "timeout": 1000})
    by_id = [{"name": None, "topic_id": UNKNOWN_ID}, {"name": GONE, "topic_id": None}]
    add(20, 6, {"topics": by_id, "timeout": 1000})
    rows = [{"name": name, "count": 1, "assignments": None} for name in (HERE, GONE)]
    add(37, 3, {"topics": rows, "timeout": 1000, "validate_only": True})
    parts = [{"topic": name, "partitions": [0]} for name in (HERE, GONE)]
    add(43, 2, {"election_type": 0, "topic_partitions": parts, "timeout": 1000})
    moves = [{"name": name, "partitions": [{"partition_index": 0, "replicas": None}]} for name in (HERE, GONE)]
    add(45, 1, {"timeout": 1000, "allow_replication_factor_change": True, "topics": moves})
    add(46, 0, {"timeout": 1000, "topics": [{"name": HERE, "partition_indexes": [0]}]})
    cursor = {"response_partition_limit": 2000, "cursor": None}
    add(75, 0, cursor | {"topics": [{"name": name} for name in (HERE, GONE)]})
    add(75, 0, cursor | {"topics": []}, "all")


def _settings(add: Add, here: UUID) -> None:
    resources = [(2, HERE, "cleanup.policy"), (2, GONE, "cleanup.policy"), (4, "1", "num.partitions"),
                 (32, HERE, "consumer.session.timeout.ms"), (16, "m", "interval.ms")]  # fmt: skip
    for kind, name, key in resources:
        asked = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
        add(32, 4, {"resources": [asked], "include_synonyms": False, "include_documentation": False}, f"{kind} {name}")
        value = {2: "compact", 4: "5", 32: "46000", 16: "1000"}[kind]
        if kind != 4:
            row = {"resource_type": kind, "resource_name": name}
            add(33, 2, {"resources": [row | {"configs": [{"name": key, "value": value}]}], "validate_only": True},
                f"{kind} {name}")  # fmt: skip
        key = "log.cleaner.threads" if kind == 4 else key
        change = {"name": key, "config_operation": 0, "value": "1" if kind == 4 else value}
        add(44, 1, {"resources": [{"resource_type": kind, "resource_name": name, "configs": [change]}],
                    "validate_only": True}, f"{kind} {name}")  # fmt: skip
    add(48, 1, {"components": [], "strict": False})
    entry = {"entity": [{"entity_type": "user", "entity_name": "x"}],
             "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}  # fmt: skip
    add(49, 1, {"entries": [entry], "validate_only": True})
    add(50, 0, {"users": [{"name": STRANGER}]})
    add(51, 0, {"deletions": [{"name": STRANGER, "mechanism": 1}], "upsertions": []})
    add(74, 1, {"resource_types": [16]})


def _cluster(add: Add, here: UUID) -> None:
    add(29, 3, _FILTER)
    rule = {"resource_type": 2, "resource_name": "", "resource_pattern_type": 3, "principal": "User:x", "host": "*"}
    add(30, 3, {"creations": [rule | {"operation": 3, "permission_type": 3}]})
    add(31, 3, {"filters": [_FILTER]})
    add(34, 2, {"dirs": [{"path": "/nowhere", "topics": [{"name": HERE, "partitions": [0]}]}]})
    add(35, 4, {"topics": [{"topic": GONE, "partitions": [0]}]})
    add(55, 2, {"topics": [{"topic_name": GONE, "partitions": [{"partition_index": 0}]}]})
    feature = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
    add(57, 2, {"timeout": 1000, "feature_updates": [feature], "validate_only": True})
    add(60, 2, {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False})
    add(64, 0, {"broker_id": 999})
    voter = {"cluster_id": "other", "voter_id": 9, "voter_directory_id": UNKNOWN_ID}
    add(80, 1, voter | {"timeout": 1000, "listeners": [], "ack_when_committed": True})
    add(81, 0, voter)


class User(NamedTuple):
    """A user with ACLs. ``rest``: whether everything of the other types of resources is allowed."""

    kind: int | None
    operation: int
    permission: int
    pattern: str
    rest: bool

    @property
    def name(self) -> str:
        return f"t{self.kind}o{self.operation}p{self.permission}{self.pattern}{'r' if self.rest else ''}"

    def acls(self) -> Iterator[dict[str, Any]]:
        """The rows of CreateAcls."""
        for kind in (2, 3, 4, 5):
            if kind == self.kind:
                for name, pattern in _places(kind, self.pattern):
                    yield self._row(kind, name, pattern, self.operation, self.permission)
                    if self.permission == DENY:
                        yield self._row(kind, name, pattern, ALL, ALLOW)
            elif self.rest:
                yield self._row(kind, CLUSTER if kind == 4 else "*", 3, ALL, ALLOW)

    def _row(self, kind: int, name: str, pattern: int, operation: int, permission: int) -> dict[str, Any]:
        where = {"resource_type": kind, "resource_name": name, "resource_pattern_type": pattern}
        who = {"principal": f"User:{self.name}", "host": "*"}
        return where | who | {"operation": operation, "permission_type": permission}


CLUSTER = "kafka-cluster"
ALL, DENY, ALLOW = 2, 2, 3
OPERATIONS = {
    2: (2, 3, 4, 5, 6, 7, 8, 10, 11),
    3: (2, 3, 6, 8, 10, 11),
    4: (2, 5, 7, 8, 9, 10, 11, 12),
    5: (2, 4, 8, 15),
}
"""The operations of each type of resources: all, and those that Kafka's replies list."""


def _places(kind: int, pattern: str) -> list[tuple[str, int]]:
    if pattern == "literal":
        return [(CLUSTER, 3)] if kind == 4 else [(name, 3) for name in (HERE, GONE, MODERN, STRANGE)]
    if pattern == "prefixed":
        return [(CLUSTER if kind == 4 else "data.", 4)]
    return [("*", 3)] if pattern == "wildcard" else []


def users() -> list[User]:
    """Every operation, allowed and denied, by each kind of pattern, with and without the other resources; and users
    without any ACL for a type of resources."""
    found = [
        User(kind, operation, permission, pattern, rest)
        for kind, operations in OPERATIONS.items()
        for operation in operations
        for permission in (ALLOW, DENY)
        for pattern in (("literal", "prefixed") if kind == 4 else ("literal", "prefixed", "wildcard"))
        for rest in (True, False)
    ]
    found += [User(kind, ALL, ALLOW, "none", True) for kind in OPERATIONS]
    return [*found, User(None, ALL, ALLOW, "none", False), User(None, ALL, ALLOW, "none", True)]
