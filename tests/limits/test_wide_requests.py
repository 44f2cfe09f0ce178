"""The widest requests of each API: no step of their service makes or frees more than a few of their elements."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import Generator, Known, Request, Scale, packed, places_of, versions_of
from support.peers import Peer, serving, until

from odradek.broker.handlers import served
from odradek.broker.scheduler import Task
from odradek.broker.server import BrokerServer
from odradek.wire import schemas
from odradek.wire.api_keys import JOIN_GROUP, SYNC_GROUP
from odradek.wire.schemas import Kind

WIDTH = 2100
"""A request of more than 2,000 elements is read in steps."""
BLOCKS_PER_STEP = 6000
"""Of memory, made or freed. Nearly all of the widest requests are of 10,000 and more."""
_ELSEWHERE = {JOIN_GROUP, SYNC_GROUP}
"""What groups do with thousands of members is counted in `test_group_steps`."""


class Steps:
    """Counts what each step makes or frees. Each share is one step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most_blocks = self.count = 0
        run_share = Task.run_share

        def counted(task: Task[Any], until_s: float) -> bool:
            before = sys.getallocatedblocks()
            has_more = run_share(task, 0.0)
            self.most_blocks = max(self.most_blocks, abs(sys.getallocatedblocks() - before))
            self.count += 1
            return has_more

        monkeypatch.setattr(Task, "run_share", counted)


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    """A collection would free in one step what others have left."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def with_broker(directory: Path, story: Callable[[BrokerServer, Known], Any]) -> None:
    async def run() -> None:
        async with serving(directory) as broker:
            broker.create_topic("known", partition_count=4)
            topic = broker.catalog.topic("known")
            assert topic is not None
            await story(broker, Known(("known",), (topic.id,), ("group",)))

    asyncio.run(run())


def places(api_key: int) -> list[str]:
    """Where the newest version of a request has arrays."""
    return places_of(schemas.message_type(api_key, versions_of(api_key)[-1], Kind.REQUEST), "widest")


def widest(known: Known, api_key: int, where: str) -> Request:
    generator = Generator(15, known, Scale(widths=(WIDTH,)))
    generator.dice = random.Random(f"{api_key}{where}")
    return generator.widest(api_key, where)


WIDE = [(key, where) for key in (api.key for api in served()) for where in places(key)]


@pytest.mark.parametrize(("api_key", "where"), [case for case in WIDE if case[0] not in _ELSEWHERE])
def test_no_step_of_a_wide_request_is_long(
    api_key: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: BrokerServer, known: Known) -> None:
        warm, peer = Peer(broker), Peer(broker)
        await warm.exchange(packed(widest(known, api_key, where), 1))  # loads what is loaded once
        steps = Steps(monkeypatch)
        await peer.exchange(packed(widest(known, api_key, where), 2))
        peer.written.clear()
        await until(lambda: not broker.scheduler.busy)
        assert steps.most_blocks <= BLOCKS_PER_STEP

    with_broker(tmp_path, story)
