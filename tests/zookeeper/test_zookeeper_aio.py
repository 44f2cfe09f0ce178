"""The consumer of odradek.aio with its offsets in ZooKeeper."""

from __future__ import annotations

import asyncio
import functools
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.insides import engine_of
from support.zookeeper_harness import GroupHarness

import odradek
from odradek import aio
from odradek.client import Admin, CommitFailed
from odradek.core.errors import ConfigError
from odradek.core.extras import command_of
from odradek.core.ids import TopicPartition as Tp


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a coroutine function as a test."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


async def read(consumer: aio.Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [record.offset for record in (await consumer.poll(0.2)).records()]
    return found


@on_a_loop
async def test_a_consumer_starts_and_commits_in_zookeeper(harness: GroupHarness, admin: Admin) -> None:
    harness.put({0: 7})
    async with aio.Consumer(harness.settings()) as one:
        await one.subscribe([harness.topic])
        assert len(await read(one, 13)) == 13
        await one.commit()
        assert (harness.offset(0), harness.offset(1)) == (10, 10)
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"
    assert (harness.ids(), harness.owner(0)) == ([], None)
    assert admin.list_group_offsets(harness.group) == {}


@on_a_loop
async def test_the_loop_is_free_while_commits_wait(harness: GroupHarness, zookeeper: odradek.ZooKeeper) -> None:
    (node,) = zookeeper.nodes
    async with aio.Consumer(harness.settings(zookeeper_session_timeout_ms=20_000)) as one:
        await one.subscribe([harness.topic])
        await read(one, 20)
        node.pause()
        try:
            committing = asyncio.ensure_future(one.commit({harness.a: 3}))
            turns = 0
            async with asyncio.timeout(10):
                while turns < 20:
                    await asyncio.sleep(0.01)
                    turns += 1
            assert not committing.done()
        finally:
            node.resume()
        await committing
    assert harness.offset(0) == 3


@on_a_loop
async def test_an_expired_session_loses_the_partitions(harness: GroupHarness, zookeeper: odradek.ZooKeeper) -> None:
    lost: list[list[Tp]] = []

    async def on_lost(partitions: list[Tp]) -> None:
        lost.append(partitions)

    async with aio.Consumer(harness.settings()) as one:
        await one.subscribe([harness.topic], on_lost=on_lost)
        await read(one, 20)
        await one.commit({harness.a: 4, harness.b: 4})
        store = engine_of(one).group.storage.store
        await asyncio.to_thread(zookeeper.expire_session, store.connection.client)
        async with asyncio.timeout(30):
            while not engine_of(one).group.has_lost_ownership:
                await asyncio.sleep(0.01)
        with pytest.raises(CommitFailed, match="no longer owns"):
            await one.commit({harness.a: 9})
        assert len(await read(one, 12)) == 12
        assert lost == [[harness.a, harness.b]]
    assert (harness.offset(0), harness.offset(1)) == (4, 4)


@on_a_loop
async def test_without_the_extra_the_error_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(ConfigError, match=re.escape(command_of("zookeeper")) + "$"):
        aio.Consumer("a:1", group_id="g", offsets_storage="zookeeper", zookeeper_connect="z:1")
