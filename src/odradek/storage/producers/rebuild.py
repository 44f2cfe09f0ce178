"""The producer states of a log from its newest snapshot and the batches after it: at a load, and after a truncation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import NamedTuple

from odradek.batches.control import ABORT, COMMIT, read_control
from odradek.batches.header import BatchHeader, Buffer
from odradek.storage.config import LogConfig
from odradek.storage.producers.producers import Producers
from odradek.storage.segments.aborted_index import AbortedEntry
from odradek.storage.segments.segment import Segment

BATCHES_A_STEP = 250
"""The batches that one step reads: about a millisecond."""


class EndedTransaction(NamedTuple):
    """A transaction that a marker of the log has ended."""

    is_aborted: bool
    entry: AbortedEntry
    """The transaction's entry in the index of aborted transactions, if it is aborted."""


def note_batch(
    producers: Producers, header: BatchHeader, data: Buffer, pos: int, *, base_offset: int, max_timestamp: int
) -> EndedTransaction | None:
    """Applies an idempotent, transactional or control batch of the log to the producer states.

    Returns the transaction that the batch ends; None if it ends none.
    """
    if not header.is_control:
        producers.apply(header, base_offset, max_timestamp)
        return None
    if not header.record_count:  # a cleaning keeps an empty marker because of its epoch
        known = producers.get(header.producer_id)
        producers.apply_marker(header, -1 if known is None else known.coordinator_epoch)
        return None
    control = read_control(data, pos, header)
    if control is None or control.kind not in {ABORT, COMMIT}:
        return None
    first_offset = producers.apply_marker(header, control.coordinator_epoch)
    if first_offset is None:
        return None
    unstable = producers.first_open_offset
    stable = base_offset + 1 if unstable is None else unstable
    entry = AbortedEntry(header.producer_id, first_offset, base_offset, stable)
    return EndedTransaction(control.kind == ABORT, entry)


def rebuild(
    producers: Producers,
    segments: list[Segment],
    config: LogConfig,
    now_ms: int,
    *,
    unindexed: Collection[Segment] = (),
    on_end: Callable[[EndedTransaction], None] = lambda ended: None,
) -> Generator[None, None, None]:
    """Loads the newest snapshot up to the log's end and applies the later batches, in steps. Raises OSError.

    ``unindexed`` are recovered segments, in order, whose index of aborted transactions is not written yet. Then an
    older snapshot is loaded, because the index needs the producer states at the start of the first such segment.
    ``on_end`` gets each transaction that a marker ends.

    Between two steps, records from the last applied batch on count as unstable (``Producers.first_unstable_offset``).
    """
    end_offset = segments[-1].next_offset
    expiration_ms = config.producer_id_expiration_ms
    newest = next((segment.base_offset for segment in unindexed), None)
    yield from producers.load(segments[0].base_offset, end_offset, now_ms, expiration_ms, newest=newest)
    start = producers.end_offset
    left = BATCHES_A_STEP
    for segment in tuple(segments):
        if segment.next_offset <= start:
            continue
        is_unindexed = segment in unindexed
        for position, header in segment.batches_from(segment.offset_index.lookup(start).position):
            left -= 1
            if left < 0:
                left = BATCHES_A_STEP - 1
                producers.begin_unstable(max(header.base_offset, start))
                yield
            if header.last_offset < start or header.producer_id < 0:
                continue
            data: Buffer = segment.read_batch(position, header) if header.is_control else b""
            ended = note_batch(
                producers, header, data, 0, base_offset=header.base_offset, max_timestamp=header.max_timestamp
            )
            if ended is not None:
                on_end(ended)
                if is_unindexed and ended.is_aborted:
                    segment.add_aborted(ended.entry)
    producers.end_offset = max(producers.end_offset, end_offset)
    producers.begin_unstable(None)
    yield from producers.expire_states(now_ms, expiration_ms)
