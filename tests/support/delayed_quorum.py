"""A quorum of the metadata log that commits each batch later, as a quorum of several nodes does."""

from __future__ import annotations

import asyncio
import random

from odradek.broker.metadata.quorum import InThread, LoneQuorum
from odradek.broker.metadata_log.log import MetadataLog
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError

MOST_TICKS = 30


class DelayedQuorum(LoneQuorum):
    """Syncs a batch at once, and commits it a random number of ticks of the loop later. ``committed_offset`` is that of
    the last commit. Inside ``at_once`` it commits in the call."""

    seed = 0
    delayed = 0
    """The number of batches that were committed later, of all quorums."""

    def __init__(self, log: MetadataLog, node_id: int, in_thread: InThread) -> None:
        super().__init__(log, node_id, in_thread)
        self._dice = random.Random(self.seed)

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        if self._is_at_once:
            return super().append(packed, count)
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
            self.is_syncing = False
            promise.resolve(value)

        tick(self._dice.randrange(MOST_TICKS))
        return promise
