"""The batches of aborted transactions, which read_committed consumers skip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from odradek.batches.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


class AbortedTransaction(NamedTuple):
    """An entry of a read_committed fetch reply: the producer's transaction from ``first_offset`` on was aborted."""

    producer_id: int
    first_offset: int


class AbortedBatches(NamedTuple):
    """The aborted transactions of one fetch: the lowest offset at which one of them began, which may be before the
    fetch; and the offsets of their batches."""

    first_offset: int | None
    batches: list[tuple[int, int]]


def aborted_batches(
    headers: Sequence[BatchHeader], aborted: Sequence[AbortedTransaction], start: int, end: int
) -> AbortedBatches:
    """Returns the aborted transactions of a fetch with these batches, and their offsets from ``start`` to ``end``."""
    hidden = rolled_back([(one.last_offset, one.attributes, one.producer_id) for one in headers], aborted)
    batches = [
        (max(one.base_offset, start), min(one.last_offset + 1, end))
        for one, is_hidden in zip(headers, hidden, strict=True)
        if is_hidden and one.last_offset >= start and one.base_offset < end
    ]
    return AbortedBatches(min((one.first_offset for one in aborted), default=None), batches)


def rolled_back(batches: Iterable[tuple[int, int, int]], aborted: Sequence[AbortedTransaction]) -> list[bool]:
    """Returns for each batch (last offset, attributes, producer id) in log order whether its transaction was aborted.

    The producer's next control batch ends the transaction. For a control batch the result is False.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    inside: set[int] = set()
    hidden = []
    for last_offset, attributes, producer_id in batches:
        while waiting and waiting[-1].first_offset <= last_offset:
            inside.add(waiting.pop().producer_id)
        if attributes & CONTROL_BIT:
            inside.discard(producer_id)
        hidden.append(bool(attributes & TRANSACTIONAL_BIT and producer_id in inside and not attributes & CONTROL_BIT))
    return hidden
