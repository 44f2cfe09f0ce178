"""Injected faults without a socket: the place of the error code in each reply, the affected requests, and their
order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.instances import Instances

from odradek.broker.fault_injection.error_replies import refusal
from odradek.broker.fault_injection.middleware import FaultInjection
from odradek.broker.fault_injection.rules import find_api, find_code, kafka_name, names_topics
from odradek.broker.front_end.router import Api, Router
from odradek.broker.handlers import handler_files
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.partitions.fetch_sessions import FetchSessions, RequestedPartition
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.produce_fetch_replies import FetchedPartition, fetch_reply
from odradek.wire.schemas import Kind

APIS = {api.key: api for api in map(Api.of, handler_files("client"))}
CODE = ErrorCode.not_coordinator
T_ID = UUID(int=7)


def refused(api_key: int, version: int, request: Any) -> Any:
    """The reply that refuses ``request``, decoded as a client decodes it."""
    reply = refusal(api_key, version, request, CODE, "why")
    assert reply is not None
    packed = schemas.encode(api_key, version, Kind.RESPONSE, reply)
    return schemas.decode(api_key, version, Kind.RESPONSE, packed)[0]


def codes(message: Any) -> list[ErrorCode]:
    """Every error code in a message."""
    found = []
    for field in fields(message):
        value = getattr(message, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            found += codes(each) if is_dataclass(each) else [each] * isinstance(each, ErrorCode)
    return found


def request(api_key: int, version: int, message: dict[str, Any]) -> Any:
    packed = schemas.encode(api_key, version, Kind.REQUEST, message)
    return schemas.decode(api_key, version, Kind.REQUEST, packed)[0]


# --- the place of the error code ----------------------------------------------------------------------------------


UNREADABLE = {38, 39, 40, 65}
"""Delegation tokens and transactions: kio cannot read their unknown times, which are -1."""


@pytest.mark.parametrize("api_key", sorted(APIS.keys() - UNREADABLE), ids=kafka_name)
def test_every_api_can_be_refused_in_every_version(api_key: int) -> None:
    """For each request, the reply can be encoded and has the code in each error field, except the top
    one of Fetch and Metadata."""
    api = APIS[api_key]
    found_codes = 0
    for version in range(api.oldest, api.newest + 1):
        for seed in range(8):
            asked = Instances(seed).of(schemas.message_type(api_key, version, Kind.REQUEST))
            reply = refused(api_key, version, asked)
            found = codes(reply)
            # the top error field of Fetch and Metadata is for other errors, such as those of a session
            if api_key in (1, 3) and hasattr(reply, "error_code"):
                found.remove(ErrorCode.none)
                assert reply.error_code is ErrorCode.none
            assert found == [CODE] * len(found)
            found_codes += CODE in found
    assert found_codes


def test_partitions_are_refused_one_by_one() -> None:
    topics = [{"name": name, "partitions": [{"partition_index": i} for i in (0, 2)]} for name in ("a", "b")]
    for topic in topics:
        for partition in topic["partitions"]:
            partition |= {"committed_offset": 5, "committed_metadata": None, "committed_leader_epoch": -1}
    asked = request(8, 9, {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "m", "topics": topics})
    rows = [(t.name, p.partition_index, p.error_code) for t in refused(8, 9, asked).topics for p in t.partitions]
    assert rows == [("a", 0, CODE), ("a", 2, CODE), ("b", 0, CODE), ("b", 2, CODE)]


def test_a_refusal_does_not_repeat_requested_values_as_results() -> None:
    """A refusal repeats neither the timestamp of ListOffsets nor the epoch of OffsetForLeaderEpoch."""
    partition = {"partition_index": 1, "current_leader_epoch": 0, "timestamp": 1_700_000_000_000}
    asked = request(
        2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [partition]}]}
    )
    row = refused(2, 7, asked).topics[0].partitions[0]
    assert (row.partition_index, row.error_code, row.timestamp, row.offset) == (1, CODE, -1, -1)
    partition = {"partition": 1, "current_leader_epoch": 0, "leader_epoch": 4}
    asked = request(23, 4, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [partition]}]})
    row = refused(23, 4, asked).topics[0].partitions[0]
    assert (row.partition, row.error_code, row.leader_epoch, row.end_offset) == (1, CODE, -1, -1)


def test_names_in_a_plain_list_are_refused_by_name() -> None:
    groups = refused(15, 5, request(15, 5, {"groups": ["g", "h"], "include_authorized_operations": False})).groups
    assert [(group.group_id, group.error_code) for group in groups] == [("g", CODE), ("h", CODE)]
    topics = refused(20, 5, request(20, 5, {"topic_names": ["t"], "timeout": 1000})).responses
    assert [(topic.name, topic.error_code, topic.error_message) for topic in topics] == [("t", CODE, "why")]
    partition = {"name": "t", "partition_indexes": [3]}
    found = refused(9, 1, request(9, 1, {"group_id": "g", "topics": [partition]})).topics[0].partitions[0]
    assert (found.partition_index, found.error_code, found.committed_offset) == (3, CODE, -1)


def test_a_refused_leave_group_has_only_the_error_at_the_top_level() -> None:
    leave = refused(
        13, 5, request(13, 5, {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None}]})
    )
    assert (leave.error_code, leave.members) == (CODE, ())


# --- names --------------------------------------------------------------------------------------------------------


def test_an_unknown_name_raises_an_error_with_the_nearest_name() -> None:
    assert [find_api(APIS, name) for name in ("OffsetCommit", "offset_commit", 8)] == [8, 8, 8]
    with pytest.raises(ValueError, match="no API 'OfsetCommit' is served; did you mean 'OffsetCommit'"):
        find_api(APIS, "OfsetCommit")
    with pytest.raises(ValueError, match="no API 'Vote' is served"):
        find_api(APIS, "Vote")
    assert [find_code(name) for name in ("NOT_COORDINATOR", "not_coordinator", 16)] == [CODE] * 3
    with pytest.raises(ValueError, match="did you mean 'NOT_COORDINATOR'"):
        find_code("NOT_COORDINATR")
    with pytest.raises(ValueError, match="no error code 4711"):
        find_code(4711)
    assert [key for key in APIS if names_topics(key, APIS[key].newest)] >= [0, 1, 2, 3, 8, 9]
    assert not names_topics(12, 4)


# --- affected requests --------------------------------------------------------------------------------------------


class FaultsHarness:
    """Faults in front of a broker whose APIs all have the same handler. Time moves by ``pass_time``."""

    def __init__(self, reply: Callable[[Any], Any] = lambda message: {"served": message}) -> None:
        self.done: list[Any] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.aborted: list[str] = []

        def handle(broker: Any, context: Any, message: Any) -> Any:
            self.done.append(message)
            return reply(message)

        topics = {T_ID: SimpleNamespace(name="by-id")}
        self.broker: Any = SimpleNamespace(
            loop=SimpleNamespace(call_later=self._call_later),
            now_ms=lambda: 77,
            catalog=SimpleNamespace(topic_by_id=topics.get),
            fetch_sessions=FetchSessions(10),
        )
        self.broker.apis = {key: Api(key, (APIS[key].oldest, APIS[key].newest), handle) for key in APIS}
        self.broker.router = Router(self.broker, self.broker.apis)
        self.faults = FaultInjection(self.broker)
        self.connections: dict[str, Any] = {}

    def _call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        entry = (delay, callback)
        self.later.append(entry)
        return SimpleNamespace(cancel=lambda: self.later.remove(entry) if entry in self.later else None)

    def pass_time(self) -> None:
        for entry in [*self.later]:
            if entry in self.later:
                self.later.remove(entry)
            entry[1]()

    def connection(self, name: str) -> Any:
        def abort() -> None:
            self.aborted.append(name)
            for parked in tuple(self.connections[name].parked):
                parked.abandon()

        if name not in self.connections:
            self.connections[name] = _Connection(abort)
        return self.connections[name]

    def ask(self, key: int, message: Any, *, client: str = "c", on: str = "one", version: int | None = None) -> Any:
        """The result for the router: a reply, or a Deferred of one."""
        context: Any = SimpleNamespace(
            api_key=key, client_id=client, connection=self.connection(on), version=version or APIS[key].newest
        )
        return self.broker.router.serve(self.broker.apis[key], context, message)


class _Connection:
    def __init__(self, abort: Callable[[], None]) -> None:
        self.parked: set[Any] = set()
        self.abort = abort


HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def beat(number: int = 1) -> Any:
    return request(12, 4, HEARTBEAT | {"generation_id": number})


def produce(*topics: str, acks: int = -1) -> Any:
    partition = {"index": 0, "records": b""}
    data = [{"name": topic, "partition_data": [partition]} for topic in topics]
    return request(0, 9, {"transactional_id": None, "acks": acks, "timeout": 1, "topic_data": data})


def test_without_faults_there_is_no_middleware() -> None:
    harness = FaultsHarness()
    assert not harness.broker.router.has_middleware
    harness.faults.add("error", "Heartbeat", code="NOT_COORDINATOR", times=2)
    assert harness.broker.router.has_middleware
    assert harness.ask(12, beat())["error_code"] is CODE
    assert harness.broker.router.has_middleware
    assert harness.ask(12, beat())["error_code"] is CODE
    assert not harness.broker.router.has_middleware
    assert harness.done == []
    assert harness.ask(12, beat()) == {"served": beat()}


def test_a_fault_affects_only_its_api_topic_and_client() -> None:
    harness = FaultsHarness()
    harness.faults.add("error", "Produce", code=16, times=None, topic="t", client_id="c")
    for message, client in [(produce("u"), "c"), (produce("t"), "d"), (beat(), "c")]:
        key = 12 if message == beat() else 0
        assert harness.ask(key, message, client=client, version=9 if key == 0 else 4) == {"served": message}
    for _ in range(3):
        reply = harness.ask(0, produce("u", "t"), version=9)
        assert [row["name"] for row in reply["responses"]] == ["u", "t"]
    assert [tuple(fired)[1:] for fired in harness.faults.fired] == [
        ("error", "before", "Produce", 9, "c", ["t", "u"], 77)
    ] * 3
    assert harness.faults.pending() == [1]
    harness.faults.clear()
    assert (harness.faults.pending(), list(harness.faults.fired), harness.broker.router.has_middleware) == (
        [],
        [],
        False,
    )


def test_topics_match_by_name_by_id_and_by_session() -> None:
    harness = FaultsHarness()
    harness.faults.add("drop", "Produce", topic="by-id", times=None)
    by_id = {"topic_id": T_ID, "partition_data": [{"index": 0, "records": b""}]}
    message = request(0, 13, {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [by_id]})
    assert isinstance(harness.ask(0, message, version=13), Deferred)
    harness.faults.clear()
    # A fetch without topics reads the partitions of its session.
    wanted = [RequestedPartition(T_ID, 0, 0, 1)]
    harness.broker.fetch_sessions.new_id = lambda: 5
    harness.broker.fetch_sessions.begin(0, 0, 0, wanted, (), by_id=True)
    harness.faults.add("drop", "Fetch", topic="by-id")
    fetch = request(1, 17, FETCH | {"session_id": 5, "session_epoch": 1})
    assert isinstance(harness.ask(1, fetch, version=17, on="two"), Deferred)
    # Metadata of all topics concerns each of them.
    harness.faults.add("drop", "Metadata", topic="anything")
    everything = request(3, 12, METADATA)
    assert isinstance(harness.ask(3, everything, version=12, on="three"), Deferred)


METADATA = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
FETCH = {"max_wait": 500, "min_bytes": 1, "max_bytes": 100, "isolation_level": 0, "topics": [],
         "forgotten_topics_data": [], "rack_id": ""}  # fmt: skip


def test_a_refused_fetch_keeps_its_session_and_refuses_its_partitions() -> None:
    def serve(message: Any) -> Any:
        assert message.max_wait.total_seconds() == 0
        return fetch_reply(17, [(T_ID.bytes, [FetchedPartition(0)])], session_id=5)

    harness = FaultsHarness(serve)
    harness.broker.fetch_sessions.new_id = lambda: 5
    harness.broker.fetch_sessions.begin(
        0,
        0,
        0,
        [RequestedPartition(T_ID, 0, 0, 1), RequestedPartition(T_ID, 3, 0, 1)],
        (),
        by_id=True,
    )
    harness.faults.add("error", "Fetch", code="NOT_LEADER_OR_FOLLOWER")
    reply = harness.ask(1, request(1, 17, FETCH | {"session_id": 5, "session_epoch": 1}), version=17)
    packed = schemas.encode(1, 17, Kind.RESPONSE, reply)
    read = schemas.decode(1, 17, Kind.RESPONSE, packed)[0]
    assert (read.session_id, read.error_code) == (5, ErrorCode.none)
    rows = [(t.topic_id, p.partition_index, p.error_code, p.records) for t in read.responses for p in t.partitions]
    assert rows == [(T_ID, index, ErrorCode.not_leader_or_follower, None) for index in (0, 3)]


def test_an_impossible_fault_is_refused_at_once() -> None:
    harness = FaultsHarness()
    for wrong in [
        {"kind": "eror", "api": "Heartbeat"},
        {"kind": "error", "api": "Heartbeat"},
        {"kind": "drop", "api": "Heartbeat", "topic": "t"},
        {"kind": "drop", "api": "Heartbeat", "times": 0},
        {"kind": "drop", "api": "Heartbeat", "when": "during"},
        {"kind": "delay", "api": "Heartbeat", "seconds": -1},
        {"kind": "delay", "api": "Heartbeat", "seconds": float("nan")},
    ]:
        with pytest.raises(ValueError, match=r"\w"):
            harness.faults.add(**wrong)
    assert not harness.broker.router.has_middleware


# --- processing of the request ------------------------------------------------------------------------------------


def test_a_fault_before_the_handler_prevents_the_work_and_a_later_one_does_not() -> None:
    harness = FaultsHarness()
    harness.faults.add("error", "Heartbeat", code="NOT_COORDINATOR", when="after")
    assert harness.ask(12, beat(1))["error_code"] is CODE
    harness.faults.add("disconnect", "Heartbeat")
    with pytest.raises(Hangup):
        harness.ask(12, beat(2))
    harness.faults.add("disconnect", "Heartbeat", when="after")
    with pytest.raises(Hangup):
        harness.ask(12, beat(3))
    assert [message.generation_id for message in harness.done] == [1, 3]


def test_a_delayed_request_delays_only_its_own_connection() -> None:
    harness = FaultsHarness()
    harness.faults.add("delay", "Heartbeat", seconds=2)
    replies = [harness.ask(12, beat(n)) for n in (1, 2, 3)]
    assert harness.ask(12, beat(4), on="two") == {"served": beat(4)}
    assert [message.generation_id for message in harness.done] == [4]
    assert [reply.resolved for reply in replies] == [False] * 3
    assert [delay for delay, _ in harness.later] == [2.0]
    harness.pass_time()
    assert [message.generation_id for message in harness.done] == [4, 1, 2, 3]
    assert [reply.value for reply in replies] == [{"served": beat(n)} for n in (1, 2, 3)]
    assert not harness.broker.router.has_middleware


def test_a_delayed_request_is_processed_after_its_client_disconnects() -> None:
    harness = FaultsHarness()
    harness.faults.add("delay", "Heartbeat", seconds=2)
    for number in (1, 2):
        harness.ask(12, beat(number))
    harness.connection("one").abort()
    harness.pass_time()
    assert [message.generation_id for message in harness.done] == [1]
    assert not harness.broker.router.has_middleware


def test_requests_after_a_delayed_one_can_be_delayed_again() -> None:
    harness = FaultsHarness()
    harness.faults.add("delay", "Heartbeat", seconds=2, times=2)
    replies = [harness.ask(12, beat(n)) for n in (1, 2, 3)]
    harness.pass_time()
    assert [reply.resolved for reply in replies] == [True, False, False]
    harness.pass_time()
    assert [message.generation_id for message in harness.done] == [1, 2, 3]
    assert [reply.resolved for reply in replies] == [True] * 3


def test_a_delayed_reply_is_sent_late_after_its_request_is_processed() -> None:
    waits: Deferred[Any] = Deferred()
    harness = FaultsHarness(lambda message: waits)
    harness.faults.add("delay", "Heartbeat", seconds=1, when="after")
    reply = harness.ask(12, beat())
    assert harness.done
    assert harness.later == []
    waits.resolve("reply")
    assert not reply.resolved
    harness.pass_time()
    assert reply.value == "reply"


def test_a_dropped_request_and_those_after_it_get_no_reply() -> None:
    harness = FaultsHarness()
    harness.faults.add("drop", "Heartbeat", when="after")
    replies = [harness.ask(12, beat(n)) for n in (1, 2)]
    harness.pass_time()
    harness.faults.clear()
    assert [reply.resolved for reply in replies] == [False, False]
    assert [message.generation_id for message in harness.done] == [1]
    assert harness.ask(12, beat(3), on="two") == {"served": beat(3)}
    # When the broker stops, it wakes the parked requests; this closes the connection.
    for parked in tuple(harness.connection("one").parked):
        parked.wake()
    assert harness.aborted == ["one"]
    assert not harness.broker.router.has_middleware


def test_a_disconnect_fault_on_a_deferred_reply_closes_with_the_reply() -> None:
    waits: Deferred[Any] = Deferred()
    harness = FaultsHarness(lambda message: waits)
    harness.faults.add("disconnect", "Heartbeat", when="after")
    reply = harness.ask(12, beat())
    assert harness.aborted == []
    waits.resolve("reply")
    assert harness.aborted == ["one"]
    assert not reply.resolved


def test_the_error_of_a_delayed_handler_becomes_its_reply() -> None:
    def fail(message: Any) -> Any:
        raise RuntimeError("boom")

    harness = FaultsHarness(fail)
    harness.faults.add("delay", "Heartbeat", seconds=1)
    reply = harness.ask(12, beat())
    harness.pass_time()
    assert str(reply.value) == "boom"


def test_a_fault_on_a_produce_request_with_acks_0_closes_the_connection() -> None:
    harness = FaultsHarness()
    harness.faults.add("error", "Produce", code="NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(Hangup):
        harness.ask(0, produce("t", acks=0), version=9)
