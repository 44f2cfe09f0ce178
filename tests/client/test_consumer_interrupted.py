"""Interrupted polls: the caller does not get their records, so later polls return them and no commit covers them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.insides import engine_of
from support.publish import publish as publish_values
from support.scripted import ScriptedCluster, scripted

from odradek import Admin, Consumer, TopicPartition, aio
from odradek.batches.encode import encode_batch
from odradek.client import NewTopic
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.fetch_buffer import CompletedFetch
from odradek.client.consumer.records import Polled
from odradek.client.group.errors import IllegalState
from odradek.client.group.subscription import PartitionState
from odradek.core.effects import SimpleRecord

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        made.log = [
            (first + 99, encode_batch([SimpleRecord(b"k", b"v" * 400)] * 100, now_ms=1, base_offset=first))
            for first in (0, 100)
        ]
        yield made


def settings(cluster: ScriptedCluster) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap, "auto_offset_reset": "earliest", "retry_backoff_ms": 5}


def interrupt_next_poll(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Raises KeyboardInterrupt after the next call of ``owner.name`` that returns a true value."""
    method = getattr(owner, name)

    def interrupted(*args: Any) -> Any:
        found = method(*args)
        if found:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, interrupted)


# A poll calls these methods when it takes records from the buffer.
TAKEN = [(PartitionState, "advance"), (ConsumerEngine, "take")]


@pytest.mark.claim(23, part=True)
@pytest.mark.parametrize(("owner", "name"), TAKEN)
def test_records_of_an_interrupted_poll_are_not_committed(
    bootstrap: str,
    admin: Admin,
    publish: Any,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    """The usual end of a program: Ctrl-C in a poll, then a close."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 10})
    tp = TopicPartition(topic, 0)
    one = Consumer(bootstrap, group_id=group, max_poll_records=4, auto_offset_reset="earliest")
    one.assign([tp])
    assert [record.offset for record in one.poll(20).records()] == [0, 1, 2, 3]
    interrupt_next_poll(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):
        one.poll(20)
    assert one.position(tp) == 4
    one.close()
    assert admin.list_group_offsets(group, [tp])[tp].offset == 4


@pytest.mark.parametrize(("owner", "name"), [(CompletedFetch, "next"), *TAKEN])
def test_the_poll_after_ctrl_c_returns_the_records_of_the_interrupted_poll(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    interrupt_next_poll(monkeypatch, owner, name)
    with Consumer(settings(cluster)) as one:
        one.assign([T0])
        with pytest.raises(KeyboardInterrupt):
            one.poll(10)
        found: list[int] = []
        while len(found) < 200 and (polled := one.poll(10)):
            found += [record.offset for record in polled.records()]
        assert found == list(range(200))


class Gate:
    """Blocks the thread of a poll after it has taken records, until the test opens the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        take = ConsumerEngine.take
        self._begun, self._may_go_on = threading.Event(), threading.Event()

        def slow(engine: ConsumerEngine, columns: tuple[str, ...] | None = None) -> Any:
            polled = take(engine, columns)
            if polled and threading.current_thread() is not threading.main_thread():
                self._begun.set()
                self._may_go_on.wait(20)
            return polled

        monkeypatch.setattr(ConsumerEngine, "take", slow)

    async def poll(self, one: aio.Consumer) -> asyncio.Task[Polled]:
        """Starts a poll and waits until its thread is at the gate."""
        while engine_of(one).fetcher.buffer.size < 1 << 15:  # from this size on a thread decodes
            engine_of(one).fetcher.schedule_fetches()
            await asyncio.sleep(0.01)
        polling = asyncio.ensure_future(one.poll(10))
        while not self._begun.is_set():
            await asyncio.sleep(0.001)
        return polling

    def open(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


async def rest(one: aio.Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count and (polled := await one.poll(10)):
        found += [record.offset for record in polled.records()]
    return found


def test_a_cancelled_poll_loses_no_record_that_a_thread_decodes(cluster: ScriptedCluster, gate: Gate) -> None:
    """The poll is cancelled twice while a thread decodes for it. The poll ends after the thread."""

    async def go() -> list[int]:
        async with aio.Consumer(settings(cluster)) as one:
            await one.assign([T0])
            polling = await gate.poll(one)
            for _ in range(2):
                polling.cancel()
                await asyncio.sleep(0.01)
            assert not polling.done(), "the thread is still at work"
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert await one.position(T0) == 0
            return await rest(one, 200)

    assert asyncio.run(go()) == list(range(200))


@pytest.mark.claim(23, part=True)
@pytest.mark.parametrize("way", ["commit", "commit of an offset", "commit_async", "close"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_no_commit_covers_the_records_of_an_unfinished_poll(
    bootstrap: str, admin: Admin, topic: str, group: str, gate: Gate, way: str, cancelled: bool
) -> None:
    """While a thread decodes, another task commits or closes the consumer. The poll has not returned the records yet,
    and it may be cancelled."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish_values(bootstrap, topic, ["v" * 400] * 200)
    tp = TopicPartition(topic, 0)
    committed = 3 if way == "commit of an offset" else 5

    async def commit(one: aio.Consumer) -> None:
        if way == "commit":
            await one.commit()
        elif way == "commit of an offset":
            await one.commit({tp: 3})
        elif way == "commit_async":
            await one.commit_async()
            while admin.list_group_offsets(group, [tp]).get(tp) is None:
                await asyncio.sleep(0.01)
        else:
            await one.close()

    async def go() -> list[int]:
        async with aio.Consumer(bootstrap, group_id=group) as one:
            await one.assign([tp])
            await one.seek(tp, 5)
            polling = await gate.poll(one)
            if way != "close":
                assert await one.position(tp) == 5
            await commit(one)
            assert admin.list_group_offsets(group, [tp])[tp].offset == committed
            if cancelled:
                polling.cancel()
                gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await polling
                found = []
            else:
                gate.open()
                found = [record.offset for record in (await polling).records()]
            return found if way == "close" else found + await rest(one, 195 - len(found))

    assert asyncio.run(go()) == ([] if way == "close" and cancelled else list(range(5, 200)))


def test_reading_continues_at_a_seek_during_a_poll(cluster: ScriptedCluster, gate: Gate) -> None:
    async def go() -> list[int]:
        async with aio.Consumer(settings(cluster)) as one:
            await one.assign([T0])
            polling = await gate.poll(one)
            await one.seek(T0, 150)
            gate.open()
            found = [record.offset for record in (await polling).records()]
            return found + await rest(one, 50 - len(found))

    assert asyncio.run(go()) == list(range(150, 200))


def test_a_poll_with_a_seek_during_it_returns_only_records_after_the_seek(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread decodes the buffered records in pieces and pauses after the first one. During the pause, a seek to 150
    drops the buffered records. The poll returns only records from offset 150 on."""
    advance = PartitionState.advance
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(state: PartitionState, *args: Any) -> bool:
        found = advance(state, *args)
        if not begun.is_set() and threading.current_thread() is not threading.main_thread():
            begun.set()
            may_go_on.wait(20)
        return found

    monkeypatch.setattr(PartitionState, "advance", slow)

    async def go() -> list[int]:
        async with aio.Consumer(settings(cluster)) as one:
            await one.assign([T0])
            buffer = engine_of(one).fetcher.buffer
            while buffer.size < 1 << 15:
                engine_of(one).fetcher.schedule_fetches()
                await asyncio.sleep(0.01)
            polling = asyncio.ensure_future(one.poll(10))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            await one.seek(T0, 150)
            while not buffer.bytes_of(T0):
                await asyncio.sleep(0.001)
            may_go_on.set()
            found = [record.offset for record in (await polling).records()]
            return found + await rest(one, 50 - len(found))

    assert asyncio.run(go()) == list(range(150, 200))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("joined", [True, False])
def test_a_close_ends_the_poll_of_another_task_and_the_membership(
    bootstrap: str, admin: Admin, topic: str, group: str, protocol: str, joined: bool
) -> None:
    """The waiting poll must not rejoin the group after the close."""
    admin.create_topics([NewTopic(topic, 1, 1)])

    async def go() -> None:
        one = aio.Consumer(bootstrap, group_id=group, group_protocol=protocol)
        await one.subscribe([topic])
        while joined and not one.assignment():
            await one.poll(0.01)
        polling = asyncio.ensure_future(one.poll(60))
        await asyncio.sleep(0.05)
        await one.close()
        with pytest.raises(IllegalState, match="closed while it polled"):
            await polling
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "no task is left"

    asyncio.run(go())
    assert admin.describe_groups([group])[group].members == ()


def test_the_poll_of_a_second_task_is_refused(cluster: ScriptedCluster, gate: Gate) -> None:
    """Both polls would take records from the same batches."""

    async def go() -> list[int]:
        async with aio.Consumer(settings(cluster)) as one:
            await one.assign([T0])
            polling = await gate.poll(one)
            with pytest.raises(IllegalState, match="another task polls"):
                await one.poll(1)
            with pytest.raises(IllegalState, match="another task polls"):
                async for _ in one:
                    pass
            gate.open()
            found = [record.offset for record in (await polling).records()]
            return found + await rest(one, 200 - len(found))

    assert asyncio.run(go()) == list(range(200))


@pytest.mark.parametrize("buffered", [False, True])
def test_polls_that_do_not_wait_let_other_tasks_run(cluster: ScriptedCluster, buffered: bool) -> None:
    """A loop of polls must not block other tasks, even if each poll returns a buffered record or has a timeout of 0."""

    async def go() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        cluster.log = [
            (99, encode_batch([SimpleRecord(b"k", b"v")] * 100, now_ms=1, base_offset=0))
        ]  # so small that no thread decodes it
        async with aio.Consumer(settings(cluster), max_poll_records=1) as one:
            await one.assign([T0])
            if buffered:
                await one.poll(10)
            ticking = asyncio.ensure_future(others())
            before = turns
            for _ in range(20):
                await one.poll(10 if buffered else 0)
            ticking.cancel()
            return turns - before

    assert asyncio.run(go()) >= 20
