"""``wakeup`` ends every wait for a broker, as in Java. No record and no commit is lost."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.brokers import eventually
from support.publish import publish
from support.scripted import (
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    ScriptedBroker,
    scripted,
)

import odradek.aio
from odradek import Admin, Broker, Consumer, TopicPartition
from odradek.batches.encode import encode_batch
from odradek.client.group.errors import Wakeup
from odradek.core.effects import SimpleRecord

T0 = TopicPartition("t", 0)
PATIENCE_S = 60
SETTINGS: dict[str, Any] = {
    "group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 20,
    "retry_backoff_ms": 1,
}  # fmt: skip


def commit_answer(message: Any, version: int) -> dict[str, Any]:
    row = {"partition_index": 0, "error_code": 0}
    return {"throttle_time": 0, "topics": [{"name": "t", "partitions": [row]}]}


class Gate:
    """Delays the replies to one API until the test opens the gate."""

    def __init__(self, broker: ScriptedBroker, api_key: int) -> None:
        self._answer = broker.answers.get(api_key) or getattr(broker, f"answer_{api_key}")
        self.came, self.opened = threading.Event(), threading.Event()
        broker.answers[api_key] = self

    def __call__(self, message: Any, version: int) -> Any:
        self.came.set()
        assert self.opened.wait(PATIENCE_S)
        return self._answer(message, version)

    def wake(self, one: Any) -> threading.Thread:
        """Starts a thread that calls ``one.wakeup`` once a request has arrived."""

        def act() -> None:
            assert self.came.wait(PATIENCE_S)
            one.wakeup()

        thread = threading.Thread(target=act)
        thread.start()
        return thread


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted(1) as cluster:
        data = encode_batch([SimpleRecord(b"k", b"v")] * 10, now_ms=1, base_offset=0, leader_epoch=0)
        cluster.log = [(9, data)]
        cluster.brokers[1].answers[OFFSET_COMMIT] = commit_answer
        yield cluster.brokers[1]


def committed_by(broker: ScriptedBroker) -> list[int]:
    found = [message for key, _, message in broker.asked if key == OFFSET_COMMIT]
    return [message.topics[0].partitions[0].committed_offset for message in found]


def commit_after_async(one: Consumer) -> Any:
    one.commit_async({T0: 3})
    return one.commit({})


@contextmanager
def read_to_the_end(broker: ScriptedBroker) -> Iterator[Consumer]:
    with Consumer(broker.address, **SETTINGS) as one:
        one.assign([T0])
        one.seek(T0, 0)
        eventually(lambda: one.poll(0.2), within_s=PATIENCE_S)
        yield one


def position_at_end(one: Consumer) -> Any:
    one.seek_to_end([T0])
    return one.position(T0)


CALLS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "commit": (OFFSET_COMMIT, lambda one: one.commit({T0: 5})),
    "commit, waiting for asynchronous ones": (OFFSET_COMMIT, commit_after_async),
    "committed": (OFFSET_FETCH, lambda one: one.committed([T0])),
    "position": (LIST_OFFSETS, position_at_end),
    "beginning_offsets": (LIST_OFFSETS, lambda one: one.beginning_offsets([T0])),
    "end_offsets": (LIST_OFFSETS, lambda one: one.end_offsets([T0])),
    "lag": (LIST_OFFSETS, lambda one: one.lag([T0])),
    "partitions_for": (METADATA, lambda one: one.partitions_for("t")),
    "list_topics": (METADATA, lambda one: one.list_topics()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wakeup_ends_a_waiting_call_and_the_call_can_be_repeated(broker: ScriptedBroker, name: str) -> None:
    api_key, call = CALLS[name]
    with read_to_the_end(broker) as one:
        gate = Gate(broker, api_key)
        waking = gate.wake(one)
        with pytest.raises(Wakeup):
            call(one)
        waking.join()
        assert not gate.opened.is_set()
        gate.opened.set()
        call(one)
        one.commit({T0: 8})
        assert committed_by(broker)[-1] == 8
        assert one.position(T0) == 10


def test_a_wakeup_ends_a_commit_that_looks_up_the_coordinator(broker: ScriptedBroker) -> None:
    """Commits are sent in the order of the calls, also after a wakeup."""
    gate = Gate(broker, FIND_COORDINATOR)
    with Consumer(broker.address, **SETTINGS) as one:
        waking = gate.wake(one)
        with pytest.raises(Wakeup):
            one.commit({T0: 5})
        waking.join()
        assert committed_by(broker) == []
        gate.opened.set()
        one.commit({T0: 6})
        assert committed_by(broker) == [5, 6]


def test_a_wakeup_ends_a_commit_without_a_reply(broker: ScriptedBroker) -> None:
    """After the request timeout the client opens another connection, and the next commit succeeds."""
    silent = threading.Event()

    def once(message: Any, version: int) -> Any:
        if not silent.is_set():
            silent.set()
            threading.Event().wait(PATIENCE_S)
        return commit_answer(message, version)

    broker.answers[OFFSET_COMMIT] = once
    with Consumer(broker.address, request_timeout_ms=500, default_api_timeout_ms=50_000, **SETTINGS) as one:
        one.assign([T0])
        waking = threading.Thread(target=lambda: (silent.wait(PATIENCE_S), one.wakeup()))
        waking.start()
        with pytest.raises(Wakeup):
            one.commit({T0: 4})
        waking.join()
        one.commit({T0: 6})
        assert sorted(committed_by(broker)) == [4, 6]


def test_a_wakeup_is_kept_for_the_next_call_that_may_wait(broker: ScriptedBroker) -> None:
    with read_to_the_end(broker) as one:
        one.wakeup()
        one.wakeup()  # two wakeups before a call count as one
        one.commit({})
        assert one.committed([]) == {}
        assert one.end_offsets([]) == {}
        assert one.position(T0) == 10
        one.seek(T0, 4)
        one.pause([T0])
        one.resume([T0])
        one.commit_async({T0: 1})
        with pytest.raises(Wakeup):
            one.poll(0)
        assert [r.offset for r in eventually(lambda: one.poll(0.2), within_s=PATIENCE_S).records()] == [
            4,
            5,
            6,
            7,
            8,
            9,
        ]


@pytest.mark.parametrize("name", [name for name in CALLS if "commit," not in name])
def test_a_call_after_a_wakeup_raises_at_once(broker: ScriptedBroker, name: str) -> None:
    api_key, call = CALLS[name]
    with read_to_the_end(broker) as one:
        gate = Gate(broker, api_key)  # a call that waits cannot return before the gate opens
        one.wakeup()
        with pytest.raises(Wakeup):
            call(one)
        gate.opened.set()
        call(one)
        if name == "commit":  # the first call sent its commit although it raised
            assert committed_by(broker) == [5, 5]


def test_a_close_after_a_wakeup_commits_and_ends(broker: ScriptedBroker) -> None:
    settings = SETTINGS | {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
    one = Consumer(broker.address, **settings)
    one.assign([T0])
    one.seek(T0, 0)
    eventually(lambda: one.poll(0.2), within_s=PATIENCE_S)
    gate = Gate(broker, OFFSET_COMMIT)
    waking = gate.wake(one)
    with pytest.raises(Wakeup):
        one.commit({T0: 2})
    waking.join()
    gate.opened.set()
    one.wakeup()
    one.close()
    assert committed_by(broker) == [2, 10]
    one.wakeup()  # has no effect after the close


def test_a_wakeup_ends_a_poll_that_looks_up_topics(broker: ScriptedBroker) -> None:
    gate = Gate(broker, METADATA)
    with Consumer(broker.address, **SETTINGS) as one:
        one.subscribe(pattern="t.*")
        waking = gate.wake(one)
        with pytest.raises(Wakeup):
            one.poll(PATIENCE_S)
        waking.join()
        gate.opened.set()
        one.unsubscribe()


# --- asynchronously -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["commit", "committed", "end_offsets", "partitions_for"])
def test_a_wakeup_ends_an_awaited_call(broker: ScriptedBroker, name: str) -> None:
    api_key, call = CALLS[name]

    async def main() -> None:
        async with odradek.aio.Consumer(broker.address, **SETTINGS) as one:
            await one.assign([T0])
            gate = Gate(broker, api_key)
            waking = gate.wake(one)
            with pytest.raises(Wakeup):
                await call(one)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            gate.opened.set()
            await call(one)
            waking.join()

    asyncio.run(main())


@pytest.mark.parametrize("wakeup_first", [True, False])
def test_a_cancelled_call_ends_as_cancelled_despite_a_wakeup(broker: ScriptedBroker, wakeup_first: bool) -> None:
    """A wakeup at the same moment is kept for the next call."""

    async def main() -> None:
        async with odradek.aio.Consumer(broker.address, **SETTINGS) as one:
            await one.assign([T0])
            gate = Gate(broker, OFFSET_FETCH)
            task = asyncio.ensure_future(one.committed([T0]))
            assert await asyncio.to_thread(gate.came.wait, PATIENCE_S)
            for act in (one.wakeup, task.cancel) if wakeup_first else (task.cancel, one.wakeup):
                act()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.opened.set()
            with pytest.raises(Wakeup):
                await one.committed([T0])
            assert (await one.committed([T0]))[T0] is not None

    asyncio.run(main())


def test_a_timeout_of_the_caller_ends_a_call_as_a_timeout(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with odradek.aio.Consumer(broker.address, **SETTINGS) as one:
            await one.assign([T0])
            gate = Gate(broker, OFFSET_FETCH)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await one.committed([T0])
            waking = gate.wake(one)
            with pytest.raises(Wakeup):
                async with asyncio.timeout(PATIENCE_S):
                    await one.committed([T0])
            waking.join()
            gate.opened.set()

    asyncio.run(main())


def test_a_wakeup_before_the_first_call_is_kept(broker: ScriptedBroker) -> None:
    async def main() -> None:
        one = odradek.aio.Consumer(broker.address, **SETTINGS)
        one.wakeup()
        await one.assign([T0])
        with pytest.raises(Wakeup):
            await one.poll(0)
        await one.poll(0)
        await one.close()
        one.wakeup()

    asyncio.run(main())


# --- in a group -----------------------------------------------------------------------------------------------------

QUICK_GROUPS = {"group.consumer.min.heartbeat.interval.ms": "100", "group.consumer.heartbeat.interval.ms": "100",
                "group.consumer.assignment.interval.ms": "0"}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "range": {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 100},
    "cooperative-sticky": {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 100},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture(scope="module")
def real() -> Iterator[Broker]:
    with Broker(config=QUICK_GROUPS) as broker:
        yield broker


def wake_when_dropped(broker: Broker, one: Consumer, when: str = "after") -> threading.Thread:
    """The broker does not reply to the next commit. A thread calls ``one.wakeup`` when the commit arrives."""
    before = len(broker.faults.fired)
    broker.faults.drop("OffsetCommit", when=when)

    def act() -> None:
        eventually(lambda: len(broker.faults.fired) > before, within_s=PATIENCE_S)
        one.wakeup()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", KINDS)
def test_a_rebalance_continues_after_a_wakeup_in_on_revoked(real: Broker, topic: str, group: str, kind: str) -> None:
    """The wakeup ends a commit in ``on_revoked``. The next poll calls ``on_revoked`` again, and each
    member gets its share."""
    real.create_topic(topic, partitions=2)
    for partition in range(2):
        publish(real.bootstrap_servers, topic, ["v"] * 10, partition=partition)
    settings = SETTINGS | KINDS[kind] | {"request_timeout_ms": 1_000, "group_id": group}
    with (
        Consumer(real.bootstrap_servers, **settings) as first,
        Consumer(real.bootstrap_servers, **settings) as second,
    ):
        revoked: list[list[TopicPartition]] = []
        waking: list[threading.Thread] = []

        def on_revoked(partitions: list[TopicPartition]) -> None:
            revoked.append(partitions)
            if len(revoked) == 1:
                waking.append(wake_when_dropped(real, first))
            first.commit()

        first.subscribe([topic], on_revoked=on_revoked)
        eventually(lambda: (first.poll(0.1), len(first.assignment()) == 2)[1], within_s=PATIENCE_S)
        eventually(
            lambda: (first.poll(0.1), all(first.position(tp) == 10 for tp in first.assignment()))[1],
            within_s=PATIENCE_S,
        )
        second.subscribe([topic])

        def until_woken() -> bool:
            second.poll(0.05)
            first.poll(0.05)
            return False

        with pytest.raises(Wakeup):
            eventually(until_woken, within_s=PATIENCE_S)
        waking[0].join()
        assert len(revoked) == 1
        assert len(first.assignment()) == 2  # no partition was revoked

        def shared() -> bool:
            second.poll(0.05)
            first.poll(0.05)
            mine, yours = first.assignment(), second.assignment()
            return len(mine) == len(yours) == 1 and not mine & yours

        eventually(shared, within_s=PATIENCE_S)
        assert revoked[1] == revoked[0]


@pytest.mark.parametrize("kind", ["range", "cooperative-sticky"])
def test_a_wakeup_ends_the_commit_of_a_poll_before_it_rejoins(real: Broker, topic: str, group: str, kind: str) -> None:
    real.create_topic(topic, partitions=1)
    publish(real.bootstrap_servers, topic, ["v"] * 10)
    tp = TopicPartition(topic, 0)
    settings = SETTINGS | KINDS[kind] | {"request_timeout_ms": 1_000, "group_id": group}
    settings |= {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
    assigned: list[int] = []
    with Admin(real.bootstrap_servers) as admin, Consumer(real.bootstrap_servers, **settings) as one:
        one.subscribe([topic], on_assigned=lambda partitions: assigned.append(len(partitions)))
        eventually(lambda: one.poll(0.1), within_s=PATIENCE_S)
        waking = wake_when_dropped(real, one, when="before")
        one.enforce_rebalance()
        with pytest.raises(Wakeup):
            one.poll(PATIENCE_S)
        waking.join()
        assert one.assignment() == {tp}
        eventually(lambda: (one.poll(0.1), len(assigned) == 2)[1], within_s=PATIENCE_S)
        assert admin.list_group_offsets(group)[tp].offset == 10
        assert one.assignment() == {tp}


def test_a_signal_handler_may_call_wakeup(broker: ScriptedBroker) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: one.wakeup())
    try:
        with Consumer(broker.address, **SETTINGS) as one:
            one.assign([T0])
            one.seek(T0, 10)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Wakeup):
                one.poll(PATIENCE_S)
    finally:
        signal.signal(signal.SIGALRM, before)
