"""Fetch sessions: their memory is limited, and the broker creates large sessions in steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uvloop
from counters import bytes_kept
from support.peers import until
from test_connection_shares import connect, serving

from odradek.broker.partitions import fetch_sessions
from odradek.broker.partitions.fetch_sessions import EVICTION_MS, FetchContext, FetchSessions, RequestedPartition
from odradek.core.errors import ErrorCode, KafkaError

PARTITIONS, MAX_BYTES, LIMIT = 25_000, fetch_sessions.MAX_BYTES // 4, 8 << 20
"""The limit of a session cache in these tests, and the allowed growth of memory. All partitions would take more."""


class Broker:
    """The session cache of a broker. The requests name partitions of unknown topics, because clients may name any
    partitions."""

    def __init__(self, slots: int = 1000) -> None:
        self.sessions = FetchSessions(slots, MAX_BYTES)
        self.sessions.new_id = itertools.count(100).__next__
        self._names = itertools.count()

    def begin(
        self, wanted: list[RequestedPartition], owner: int | None = None, *, now_ms: int = 0, by_id: bool = False
    ) -> FetchContext:
        named = {} if owner is None else {"owner": owner}
        return self.sessions.begin(now_ms, 0, 0, wanted, (), by_id=by_id, **named)

    def grow(self, context: FetchContext, wanted: list[RequestedPartition], owner: int) -> FetchContext:
        session = context.session
        assert session is not None
        return self.sessions.begin(0, session.id, session.epoch, wanted, (), by_id=False, owner=owner)

    def unknown(self, count: int, *, by_id: bool = False) -> list[RequestedPartition]:
        """Partitions of topics that do not exist: each has a different topic and a different number."""
        rows = []
        for number in itertools.islice(self._names, count):
            topic: str | UUID = UUID(int=1 + number) if by_id else f"unknown-topic-{number:08}"
            rows.append(RequestedPartition(topic, 1000 + number, 1 << 40 | number, (1 << 20) + number))
        return rows


def test_the_limit_of_a_broker_is_kept() -> None:
    sessions = FetchSessions(1000)
    sessions.new_id = itertools.count(1).__next__
    for number in range(20):
        wanted = [RequestedPartition(f"{number}-{index}", 0, 0, 0) for index in range(5000)]
        sessions.begin(0, 0, 0, wanted, (), by_id=False)
    assert fetch_sessions.MAX_BYTES * 0.8 < sessions.bytes <= fetch_sessions.MAX_BYTES


@pytest.mark.parametrize("by_id", [False, True])
def test_ten_sessions_of_many_unknown_partitions_stay_within_the_limit(by_id: bool) -> None:
    broker = Broker()

    def attack() -> None:
        for _ in range(10):
            wanted = broker.unknown(PARTITIONS // 10, by_id=by_id)
            assert len(broker.begin(wanted, by_id=by_id).wanted) == PARTITIONS // 10

    assert bytes_kept(attack) < LIMIT
    assert broker.sessions.bytes <= MAX_BYTES


def test_a_request_whose_session_does_not_fit_is_served_without_a_session() -> None:
    broker = Broker()
    context: list[FetchContext] = []
    assert bytes_kept(lambda: context.append(broker.begin(broker.unknown(PARTITIONS))._replace(wanted=[]))) < LIMIT
    assert context[0].session_id == 0
    assert len(broker.sessions) == 0
    assert broker.sessions.bytes == 0


def test_the_bytes_of_a_long_name_are_counted() -> None:
    broker = Broker()

    def attack() -> None:
        for number in range(250):
            broker.begin([RequestedPartition(f"{number:05}" * 13_000, 0, 0, 0)])

    assert bytes_kept(attack) < LIMIT


def test_partitions_added_to_a_session_are_counted() -> None:
    broker = Broker()
    contexts = [broker.begin(broker.unknown(1), owner) for owner in range(8)]

    def attack() -> None:
        for number in range(PARTITIONS // 1000):
            owner = number % 8
            rows = broker.unknown(1000)
            if broker.sessions.bytes + 1000 * 400 > MAX_BYTES:
                with pytest.raises(KafkaError, match="does not fit") as refusal:
                    broker.grow(contexts[owner], rows, owner)
                assert refusal.value.code is ErrorCode.fetch_session_id_not_found
                contexts[owner] = broker.begin(broker.unknown(1), owner)
            else:
                contexts[owner] = broker.grow(contexts[owner], rows, owner)._replace(wanted=[])

    assert bytes_kept(attack) < LIMIT


def test_sessions_of_closed_connections_are_replaced() -> None:
    broker = Broker()
    first = broker.begin(broker.unknown(10_000), 1)
    assert first.session_id
    assert not broker.begin(broker.unknown(10_000), 2).session_id
    broker.sessions.owner_gone(1)
    assert broker.sessions.find(first.session_id), "the client may continue the session on another connection"
    assert broker.grow(first, [], 3).session_id == first.session_id
    assert not broker.begin(broker.unknown(10_000), 2).session_id, "another connection uses the session again"
    broker.sessions.owner_gone(3)
    assert broker.begin(broker.unknown(10_000), 2).session_id
    assert broker.sessions.find(first.session_id) is None


def test_one_connection_cannot_take_all_slots() -> None:
    broker = Broker(slots=10)
    other = broker.begin(broker.unknown(1), 7)
    last = [broker.begin(broker.unknown(1), 1) for _ in range(100)][-1]
    assert last.session_id
    assert broker.begin(broker.unknown(1), 2).session_id
    assert broker.sessions.find(other.session_id)
    assert broker.sessions.find(last.session_id)


def test_sessions_idle_for_two_minutes_are_replaced() -> None:
    broker = Broker()
    assert broker.begin(broker.unknown(10_000), 1).session_id
    assert not broker.begin(broker.unknown(10_000), 2, now_ms=EVICTION_MS - 1).session_id
    assert broker.begin(broker.unknown(10_000), 3, now_ms=EVICTION_MS).session_id


def test_bytes_are_counted_as_sessions_change_and_end() -> None:
    dice = random.Random(4)
    sessions = FetchSessions(5, 60 * 400)
    open_ids = [0]
    sessions.new_id = itertools.count(1).__next__
    for step in range(3000):
        session = sessions.find(dice.choice(open_ids))
        wanted = [RequestedPartition(dice.choice("abc"), dice.randrange(30), 0, 0) for _ in range(dice.randrange(8))]
        forgotten = [(dice.choice("abc"), dice.randrange(30)) for _ in range(dice.randrange(8))]
        session_id, epoch = (session.id, session.epoch) if session and dice.random() < 0.8 else (0, 0)
        if session and dice.random() < 0.1:
            epoch = -1
        begin = {
            "by_id": False, "owner": dice.choice((None, 1, 2, 3)),
        }  # fmt: skip
        try:
            if dice.random() < 0.5:
                context = sessions.begin(step, session_id, epoch, wanted, forgotten, **begin)
            else:
                *_, context = _run(sessions.begin_in_steps(step, session_id, epoch, wanted, forgotten, **begin))
            open_ids.append(context.session_id)
        except KafkaError:
            pass
        sessions.owner_gone(dice.choice((1, 2, 3, 4, 5)))
        kept = list(sessions.sessions.values())
        assert sessions.bytes == sum(session.bytes for session in kept) <= 60 * 400
        assert [session.bytes for session in kept] == [
            sum(fetch_sessions.bytes_of(item.topic) for item in session.wanted) for session in kept
        ]
        assert {session.id for session in sessions.unused.values()} <= {session.id for session in kept}
        assert all(session.owner == owner for owner, session in sessions.by_owner.items())
        assert {id(session) for session in sessions.by_owner.values()} <= {id(session) for session in kept}


def _run(steps: Generator[None, None, FetchContext]) -> Iterator[FetchContext | None]:
    try:
        while True:
            yield next(steps)
    except StopIteration as end:
        yield end.value


def test_a_large_session_is_created_in_steps_of_a_few_partitions() -> None:
    broker = Broker()
    steps = broker.sessions.begin_in_steps(0, 0, 0, broker.unknown(10_000), [], by_id=False, owner=1)
    sizes = [0]
    for _ in steps:
        session = broker.sessions.find(100)
        assert session is not None
        sizes.append(len(session))
    assert max(after - before for before, after in itertools.pairwise(sizes)) <= fetch_sessions.STEP_PARTITIONS
    assert sizes[-1] == 10_000


def test_a_client_that_disconnects_during_the_steps_leaves_no_session() -> None:
    broker = Broker()
    steps = broker.sessions.begin_in_steps(0, 0, 0, broker.unknown(10_000), [], by_id=False, owner=1)
    next(steps)
    steps.close()
    assert len(broker.sessions) == 0
    assert broker.sessions.bytes == 0


# --- on a broker ------------------------------------------------------------------------------------------------

PER_TOPIC = 300


def _partition(number: int, offset: int = 0) -> dict[str, Any]:
    return {
        "partition": number, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1 << 20,
    }  # fmt: skip


def _fetch(session: tuple[int, int], topics: dict[str, list[dict[str, Any]]], gone: dict[str, list[int]]) -> Any:
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
        "session_id": session[0], "session_epoch": session[1], "rack_id": "",
        "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()],
        "forgotten_topics_data": [{"topic": name, "partitions": rows} for name, rows in gone.items()],
    }  # fmt: skip


def _answers(reply: Any) -> dict[tuple[str, int], int]:
    return {(topic.topic, row.partition_index): row.error_code for topic in reply.responses for row in topic.partitions}


def test_sessions_of_many_and_of_few_partitions_behave_the_same(tmp_path: Path) -> None:
    """Requests with 300 partitions of each topic are served in steps, and those with 20 are not. The results of
    partitions 0 to 19 agree."""

    async def conversation(count: int) -> list[dict[tuple[str, int], int]]:
        said = []
        async with serving(tmp_path / str(count)) as broker:
            client = await connect(broker)
            topic = {"name": "t", "num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
            await client.ask(19, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})
            rows = [_partition(number) for number in range(count)]
            twice = [*rows, _partition(1, offset=7)]  # the last occurrence of a partition has precedence
            reply = await client.ask(1, 12, _fetch((0, 0), {"t": twice, "unknown": rows}, {}))
            said.append(_answers(reply))
            assert reply.session_id
            session = broker.fetch_sessions.find(reply.session_id)
            assert session is not None
            assert len(session) == 2 * count
            assert session.wanted[1].fetch_offset == 7
            other = await connect(broker)
            client.writer.close()
            await until(lambda: session.owner is None)
            gone = {"t": [2, *range(4, count)], "unknown": list(range(count))}
            said.append(_answers(await other.ask(1, 12, _fetch((session.id, 1), {}, gone))))
            assert len(session) == 3
            assert session.owner is not None
            said.append(_answers(await other.ask(1, 12, _fetch((session.id, 2), {"t": rows[2:]}, {}))))
            said.append({("error", 0): (await other.ask(1, 12, _fetch((session.id, 9), {"t": rows}, {}))).error_code})
            final = await other.ask(1, 12, _fetch((session.id, -1), {"t": rows}, {}))
            said.append(_answers(final))
            assert final.session_id == len(broker.fetch_sessions) == 0
        return said

    def cut(said: list[dict[tuple[str, int], int]]) -> list[dict[tuple[str, int], int]]:
        return [{key: code for key, code in answers.items() if key[1] < 20} for answers in said]

    few, many = uvloop.run(conversation(20)), uvloop.run(conversation(PER_TOPIC))
    assert cut(many) == few
    assert [len(answers) for answers in many] == [2 * PER_TOPIC, 1, PER_TOPIC - 2, 1, PER_TOPIC]
