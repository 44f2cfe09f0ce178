"""What is left of a wide request when its client disconnects in the middle of it.

A handler ends with the connection. Only a change that has begun goes on. The memory of the request is freed in steps.
The count of objects needs a process of its own, as in ``wide_requests``.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hostile import Known, packed
from support.peers import Peer, serving, until
from widest import Wide, wide_request

from odradek.broker.loop.scheduler import Task
from odradek.broker.server import BrokerServer

PLACES = (0.1, 0.5, 0.95)
"""The client disconnects after these parts of the steps of the whole request."""


class Disconnect(NamedTuple):
    """The steps of all tasks before and after it, and of a whole request. ``freed``: the most memory blocks that the
    disconnect itself, or one step after it, frees. ``left``: blocks that remain.
    """

    at: int
    whole: int
    after: int
    freed: int
    left: int
    used: int
    waiting: int
    held_bytes: int


class _CountedSteps:
    def __init__(self) -> None:
        self.count = 0
        self.most = 0
        self.then: Callable[[int], None] = lambda count: None

    @contextmanager
    def running(self) -> Iterator[None]:
        run_share = Task.run_share

        def run_step(task: Task[Any], until_s: float) -> bool:
            before = sys.getallocatedblocks()
            has_more = run_share(task, 0.0)
            self.most = max(self.most, before - sys.getallocatedblocks())
            self.count += 1
            self.then(self.count)
            return has_more

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Task, "run_share", run_step)
            yield


async def _steps_of(broker: BrokerServer, frame: bytes, at: int = sys.maxsize) -> tuple[_CountedSteps, int, int]:
    """Serves a request, whose client disconnects after ``at`` steps. Returns the counted steps, the blocks that the
    disconnect has freed, and the blocks that are left."""
    peer, steps, freed = Peer(broker), _CountedSteps(), 0
    first = sys.getallocatedblocks()

    def disconnect(count: int) -> None:
        nonlocal freed
        if count == at:
            before = sys.getallocatedblocks()
            peer.close()
            freed = before - sys.getallocatedblocks()
            steps.most = 0

    steps.then = disconnect
    with steps.running():
        await peer.exchange(frame)
        peer.written.clear()
        peer.close()
        await until(lambda: not broker.scheduler.busy)
    return steps, freed, sys.getallocatedblocks() - first


async def _disconnect(wide: Wide, directory: Path, width: int) -> list[Disconnect]:
    async with serving(directory, **{"auto.create.topics.enable": "false"}) as broker:
        broker.create_topic("known", partition_count=4)
        topic = broker.catalog.topic("known")
        assert topic is not None
        frame = packed(wide_request(Known(("known",), (topic.id,), ("group",)), wide, width), 1)
        for load in broker.role.loads_later():  # the broker does it 2 s after its start, maybe between two counts
            load()
        await _steps_of(broker, frame)  # loads modules
        whole = (await _steps_of(broker, frame))[0].count
        found = []
        for place in PLACES:
            at = max(int(whole * place), 2)
            steps, freed, left = await _steps_of(broker, frame, at)
            found.append(
                Disconnect(
                    at, whole, steps.count - at, max(freed, steps.most), left, broker.request_elements.used,
                    broker.request_elements.waiting, broker.request_memory.complete,
                )
            )  # fmt: skip
        return found


def disconnects(wide: Wide, directory: Path, width: int) -> list[Disconnect]:
    """The disconnects of a request at several steps."""
    gc.collect()
    gc.disable()  # a collection would free the objects of many steps in one step
    try:
        return asyncio.run(_disconnect(wide, directory, width))
    finally:
        gc.enable()
