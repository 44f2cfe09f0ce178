"""A quorum of the metadata log that commits each batch later, as a quorum of several nodes does."""

from __future__ import annotations

import asyncio
import random

from odradek.broker.metadata.quorum import InThread, LoneQuorum
from odradek.broker.metadata_log.log import MetadataLog
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError

MOST_TICKS = 30
LONG_DELAYS, MOST_S = 0.1, 0.02
"""The share of the batches that are committed after milliseconds and not after ticks, and the longest such delay."""


class DelayedQuorum(LoneQuorum):
    """Syncs a batch at once, and commits it later: a random number of ticks of the loop, or milliseconds.

    ``committed_offset`` is that of the last commit. Inside ``at_once`` it commits in the call."""

    seed = 0
    delayed = 0
    """The number of batches that were committed later, of all quorums."""

    def __init__(self, log: MetadataLog, node_id: int, in_thread: InThread) -> None:
        super().__init__(log, node_id, in_thread)
        self._dice = random.Random(self.seed)
        self._held: int | None = None

    @property
    def committed_offset(self) -> int:
        return super().committed_offset if self._held is None else self._held

    def is_newest(self, offset: int) -> bool:
        return offset >= self.committed_offset

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        if self._is_at_once:
            return super().append(packed, count)
        self._held = self.committed_offset
        with self.at_once():
            value = super().append(packed, count).value
        self.is_syncing = True
        type(self).delayed += 1
        promise: Deferred[int | KafkaError] = Deferred()
        loop = asyncio.get_running_loop()

        def tick(left: int) -> None:
            if left:
                loop.call_soon(tick, left - 1)
                return
            self._held = None
            self.is_syncing = False
            promise.resolve(value)

        if self._dice.random() < LONG_DELAYS:
            loop.call_later(self._dice.random() * MOST_S, tick, 0)
        else:
            tick(self._dice.randrange(MOST_TICKS))
        return promise
