"""A poll that is broken off from outside: what it had taken reaches nobody, so it is read again and not committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import ScriptedCluster, scripted

from odradek import Admin, Consumer, TopicPartition, aio
from odradek.batches.encode import encode_batch
from odradek.client import NewTopic
from odradek.client.consumer_engine import Engine
from odradek.client.fetching import Chunk
from odradek.client.subscription import PartitionState
from odradek.core.effects import Record

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        made.log = [
            (first + 99, encode_batch([Record(b"k", b"v" * 400)] * 100, now_ms=1, base_offset=first))
            for first in (0, 100)
        ]
        yield made


def settings(cluster: ScriptedCluster) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap, "auto_offset_reset": "earliest", "retry_backoff_ms": 5}


def interrupt_next_poll(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """The next poll that takes something is broken off behind a call of this method."""
    method = getattr(owner, name)

    def interrupted(*args: Any) -> Any:
        found = method(*args)
        if found:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, interrupted)


TAKEN = [(PartitionState, "stand"), (Engine, "take")]


@pytest.mark.parametrize(("owner", "name"), TAKEN)
def test_what_ctrl_c_kept_from_the_caller_is_not_committed(
    bootstrap: str,
    admin: Admin,
    publish: Any,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:  # claim 23
    """As most loops end: Ctrl-C in a poll, and a close behind it."""
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


@pytest.mark.parametrize(("owner", "name"), [(Chunk, "next"), *TAKEN])
def test_the_poll_after_ctrl_c_goes_on_there(
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


def test_a_cancelled_poll_loses_nothing_that_a_thread_was_decoding(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncio.wait_for cancels it, once or twice; the thread goes on to its end."""
    take = Engine.take
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(engine: Engine, columns: tuple[str, ...] | None = None) -> Any:
        polled = take(engine, columns)
        if polled and threading.current_thread() is not threading.main_thread():
            begun.set()
            may_go_on.wait(20)
        return polled

    monkeypatch.setattr(Engine, "take", slow)

    async def go() -> list[int]:
        async with aio.Consumer(settings(cluster)) as one:
            await one.assign([T0])
            while one._engine.fetcher.buffer.size < 1 << 15:  # so much is decoded in a thread
                one._engine.fetcher.pump()
                await asyncio.sleep(0.01)
            polling = asyncio.ensure_future(one.poll(10))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            for _ in range(2):
                polling.cancel()
                await asyncio.sleep(0.01)
            assert not polling.done(), "the thread has not"
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert await one.position(T0) == 0
            found: list[int] = []
            while len(found) < 200 and (polled := await one.poll(10)):
                found += [record.offset for record in polled.records()]
            return found

    assert asyncio.run(go()) == list(range(200))
