"""The producers of a Spark driver, which a test cannot reach: it replaces their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from odradek.client.producer import Producer

SendOffsets = Callable[[Producer, Any, Any], None]


@contextmanager
def producer_calls(**calls: Callable[..., Any]) -> Iterator[None]:
    """During the block, each named method of a producer is the given function."""
    with pytest.MonkeyPatch.context() as patch:
        for name, call in calls.items():
            patch.setattr(Producer, name, call)
        yield


def offsets_sent_after(work: Callable[[Any], object]) -> SendOffsets:
    """Returns a ``send_offsets_to_transaction`` that first calls ``work`` with the group's metadata."""
    send = Producer.send_offsets_to_transaction

    def sending(producer: Producer, offsets: Any, group: Any) -> None:
        work(group)
        send(producer, offsets, group)

    return sending
