"""The batches of aborted transactions, which read_committed consumers skip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from odradek.batches.header import CONTROL_BIT, TRANSACTIONAL_BIT


class AbortedTransaction(NamedTuple):
    """An entry of a read_committed fetch reply: the producer's transaction from ``first_offset`` on was aborted."""

    producer_id: int
    first_offset: int


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
