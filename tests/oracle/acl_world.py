"""The topics, groups, transactions and ACLs that the requests of ``acl_requests`` meet, and the form of their replies.

The same code prepares Apache Kafka and odradek, and asks both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acl_requests import EVERYTHING, HERE, MODERN, OTHER, AclCase, User, cases, users
from recording import Run
from support.brokers import Wire, eventually

from odradek.core.errors import ErrorCode

TRACE = Path(__file__).resolve().parent / "traces" / "acls.json"
AUDIT_TRACE = TRACE.with_name("audit.json")
AUDITED = (
    "tNoneo2p3none", "tNoneo2p3noner", "t2o2p3noner", "t3o2p3noner", "t4o2p3noner", "t5o2p3noner",
    "t2o8p3literalr", "t2o8p2prefixedr", "t4o8p3literal",
)  # fmt: skip
"""Users whose audit log is recorded: without any right, with all, without those of one type, with Describe alone, with
all but Describe."""
CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.session.timeout.ms": "1800000",
    "group.consumer.session.timeout.ms": "1800000",
    "super.users": "User:ANONYMOUS",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
LONG_MS = 1_800_000
_FREE = {"log_dir": "<directory>", "producer_id": "<producer>", "total_bytes": 0, "usable_bytes": 0}
"""Fields whose values differ between brokers, with the value in the trace, if they are not negative or empty."""
Connect = Callable[[str], Wire]
"""Opens a connection of a user; "" is a super user."""


class AclWorld:
    """One broker and what ``prepare`` has made on it."""

    def __init__(self, bootstrap: str, connect: Connect) -> None:
        self._run = Run(bootstrap)
        self._connect = connect
        self.cases: list[AclCase] = []

    def prepare(self, chosen: Sequence[User]) -> None:
        """Makes the resources, and the ACLs of the chosen users."""
        for name in (HERE, OTHER):
            topic_id = self._run.create(name, partitions=2)
            self._run.name_value(topic_id, f"id of {name}")
            if name == HERE:
                self.cases = cases(topic_id)
        with self._connect("") as wire:
            self._make_groups(wire)
            self._make_transaction(wire)
            self._make_acls(wire, chosen)

    def _make_groups(self, wire: Wire) -> None:
        find = {"key_type": 0, "coordinator_keys": [HERE]}
        eventually(lambda: wire.call(10, 4, find).coordinators[0].error_code is ErrorCode.none)
        who = {"group_id": HERE, "member_id": "", "group_instance_id": None}
        timeouts = {"session_timeout": LONG_MS, "rebalance_timeout": LONG_MS, "protocol_type": "consumer"}
        joining = who | timeouts | {"reason": None, "protocols": [{"name": "range", "metadata": b""}]}
        eventually(lambda: wire.call(11, 4, joining).error_code is ErrorCode.member_id_required)
        member_id = wire.call(11, 4, joining).member_id
        joined = wire.call(11, 4, joining | {"member_id": member_id})
        member = {"group_id": HERE, "member_id": member_id, "group_instance_id": None}
        sync = {"protocol_type": "consumer", "protocol_name": "range"}
        assigned = [{"member_id": member_id, "assignment": b"a"}]
        synced = wire.call(14, 5, member | sync | {"generation_id": joined.generation_id, "assignments": assigned})
        assert synced.error_code is ErrorCode.none, synced
        self._run.name_value(member_id, "member")
        row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": "m"}
        topics = [{"name": name, "partitions": [row]} for name in (HERE, OTHER)]
        wire.call(8, 9, member | {"generation_id_or_member_epoch": joined.generation_id, "topics": topics})
        beat = {"group_id": MODERN, "member_id": "m" * 22, "member_epoch": 0, "instance_id": None, "rack_id": None}
        beat |= {"rebalance_timeout": LONG_MS, "subscribed_topic_names": [HERE], "subscribed_topic_regex": None}
        beat |= {"server_assignor": None, "topic_partitions": []}

        def is_assigned() -> bool:
            reply = wire.call(68, 1, beat)
            beat["member_epoch"] = max(reply.member_epoch, 0)
            return reply.assignment is not None and bool(reply.assignment.topic_partitions)

        eventually(is_assigned)

    def _make_transaction(self, wire: Wire) -> None:
        find = {"key_type": 1, "coordinator_keys": [HERE]}
        eventually(lambda: wire.call(10, 4, find).coordinators[0].error_code is ErrorCode.none)
        asked = {"transactional_id": HERE, "transaction_timeout": 900_000, "producer_id": -1, "producer_epoch": -1}
        eventually(lambda: wire.call(22, 5, asked).error_code is ErrorCode.none)
        producer = wire.call(22, 5, asked)
        self._run.name_number(producer.producer_id, "producer")
        topics = [{"name": name, "partitions": [0]} for name in (HERE, OTHER)]
        added = wire.call(24, 3, {"v3_and_below_transactional_id": HERE, "v3_and_below_topics": topics,
                                  "v3_and_below_producer_id": producer.producer_id,
                                  "v3_and_below_producer_epoch": producer.producer_epoch})  # fmt: skip
        codes = [row.partition_error_code for topic in added.results_by_topic_v3_and_below
                 for row in topic.results_by_partition]  # fmt: skip
        assert set(codes) == {ErrorCode.none}, added

    def _make_acls(self, wire: Wire, chosen: Sequence[User]) -> None:
        rows = [row for user in chosen for row in user.acls()]
        reply = wire.call(30, 3, {"creations": rows})
        assert {row.error_code for row in reply.results} <= {ErrorCode.none}
        everything = EVERYTHING | {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
        eventually(
            lambda: sum(len(each.acls) for each in wire.call(29, 3, everything).resources) >= len(set(map(str, rows)))
        )

    def replies(self, user: User) -> list[str]:
        """The replies to all requests of a user, as JSON."""
        with self._connect(user.name) as wire:
            return [self._reply(wire, case) for case in self.cases]

    def audit(self, user: User, read: Callable[[], list[tuple[str, str]]]) -> dict[str, list[str]]:
        """The lines of the audit log about a user, by request."""
        found = {}
        with self._connect(user.name) as wire:
            for case in self.cases:
                read()
                wire.call(case.api_key, case.version, case.message)
                mine = (f"{level} {text}" for level, text in read() if f"User:{user.name} is " in text)
                found[case.name] = sorted(mine)
        return found

    def _reply(self, wire: Wire, case: AclCase) -> str:
        reply = wire.call(case.api_key, case.version, case.message)
        return json.dumps(_in_order(self._run.shown(reply)), sort_keys=True)

    def close(self) -> None:
        self._run.disconnect("quiet")


def _in_order(value: Any) -> Any:
    """A reply with its lists sorted, and without values that differ between brokers."""
    if isinstance(value, dict):
        return {
            key: _FREE[key] if key in _FREE and inner not in (-1, "", 0) else _in_order(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return sorted((_in_order(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))
    return value


def recorded(world: AclWorld) -> dict[str, Any]:
    """The trace: the different replies, and for each request the number of each user's reply."""
    numbers: dict[str, int] = {}
    rows: dict[str, list[int]] = {case.name: [] for case in world.cases}
    for user in users():
        for case, reply in zip(world.cases, world.replies(user), strict=True):
            rows[case.name].append(numbers.setdefault(reply, len(numbers)))
    return {"users": [user.name for user in users()], "requests": rows, "replies": list(numbers)}


def audited(world: AclWorld, read: Callable[[], list[tuple[str, str]]]) -> dict[str, dict[str, list[str]]]:
    """The lines of the audit log about some users, by request: sorted, each with its level.

    ``read``: returns the level and the text of each line that is new."""
    found = {}
    for user in users():
        if user.name in AUDITED:
            found[user.name] = world.audit(user, read)
    return found


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TRACE.read_text())
    return found


def written(trace: dict[str, Any]) -> str:
    """JSON with one request and one reply per line."""
    requests = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in trace["requests"].items())
    replies = ",\n".join(json.dumps(reply) for reply in trace["replies"])
    names = json.dumps(trace["users"])
    return f'{{"users": {names},\n"requests": {{\n{requests}\n}},\n"replies": [\n{replies}\n]}}\n'


def plain_login(wire: Wire, user: str) -> Wire:
    """Logs a connection in with SASL/PLAIN; the password is the name."""
    handshake = wire.call(17, 1, {"mechanism": "PLAIN"})
    assert handshake.error_code is ErrorCode.none, handshake
    answer = wire.call(36, 1, {"auth_bytes": f"\0{user}\0{user}".encode()})
    assert answer.error_code is ErrorCode.none, answer
    return wire
