"""The largest number of objects that one step of a request allocates or frees, and of elements that it reads again.

Also the largest number of objects that the request has in memory at once.

The count needs a process with few other objects. Python counts the objects of all memory pages, and a process that has
collected all tests has ten times as many pages, so each count would take ten times as long.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hostile import Generator, Known, Request, Scale, packed, versions_of
from support.peers import Peer, serving, until
from widest import Wide, wide_request

from odradek.broker.loop.scheduler import Task
from odradek.wire.long_arrays import BLOCK, LongArray

WIDTH = 2100
"""A request of more than 2,000 elements is read in steps."""


class Most(NamedTuple):
    """The largest numbers of one step. ``held``: the most memory blocks of the request after any step."""

    blocks: int
    read_again: int
    held: int = 0


class Steps:
    """Records the largest change of the number of memory blocks in one step, and the most elements of a ``LongArray``
    that it reads. A task may be interrupted after a step."""

    def __init__(self) -> None:
        self.most = Most(0, 0)
        self._read = 0
        self._first = sys.getallocatedblocks()

    @contextmanager
    def counted(self) -> Iterator[None]:
        run_share, block = Task.run_share, LongArray.block

        def read_block(array: LongArray, number: int) -> list[Any]:
            self._read += BLOCK
            return block(array, number)

        def run_steps(task: Task[Any], until_s: float) -> bool:
            before = sys.getallocatedblocks()
            while True:
                has_more = run_share(task, 0.0)
                after = sys.getallocatedblocks()
                most = self.most
                changed, held = abs(after - before), after - self._first
                self.most = Most(max(most.blocks, changed), max(most.read_again, self._read), max(most.held, held))
                self._read = 0
                if not has_more or task.scheduler.clock() >= until_s:
                    return has_more
                before = after

        Task.run_share = run_steps
        LongArray.block = read_block
        try:
            yield
        finally:
            Task.run_share = run_share
            LongArray.block = block


def widest(known: Known, api_key: int, where: str) -> Request:
    generator = Generator(15, known, Scale(widths=(WIDTH,), usual_records=(10,)))
    generator.dice = random.Random(f"{api_key}{where}")
    return generator.widest(api_key, where)


async def _serve(api_key: int, where: str, directory: Path, strange: int = 0) -> Most:
    async with serving(directory) as broker:
        broker.create_topic("known", partition_count=4)
        topic = broker.catalog.topic("known")
        assert topic is not None
        known = Known(("known",), (topic.id,), ("group",))
        warm, peer = Peer(broker), Peer(broker)

        def widest_of() -> Request:
            if not strange:
                return widest(known, api_key, where)
            return wide_request(known, Wide(api_key, versions_of(api_key)[-1], where, "strange"), strange)

        # The first request loads modules; only the second one is counted.
        await warm.exchange(packed(widest_of(), 1))
        frame = packed(widest_of(), 2)
        await until(lambda: not broker.scheduler.busy)
        steps = Steps()
        with steps.counted():
            await peer.exchange(frame)
            peer.written.clear()
            await until(lambda: not broker.scheduler.busy)
        return steps.most


def most_in_a_step(api_key: int, where: str, directory: Path, strange: int = 0) -> Most:
    """The largest numbers of one step for the widest request of an API, when the request is served a second time.
    ``strange``: the width of a request whose texts in the array are all new ones."""
    gc.collect()
    gc.freeze()  # the loaded modules stay: the next collections need not visit their objects
    gc.disable()  # a collection would free the objects of many steps in one step
    try:
        return asyncio.run(_serve(api_key, where, directory, strange))
    finally:
        gc.enable()
