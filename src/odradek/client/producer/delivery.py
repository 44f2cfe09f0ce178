"""The result of ``Producer.send``: where a record goes, and its offset when a broker has stored it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.client.errors import IllegalState, RequestTimedOut
from odradek.client.other_names import OtherNames

if TYPE_CHECKING:
    from odradek.client.producer.accumulator import ProducerBatch
    from odradek.client.producer.delivery_waits import DeliveryWaits
    from odradek.client.producer.engine import RecordMetadata


class Delivery(OtherNames):
    """One record that was sent. ``result()`` waits for its offset; ``repr`` shows what is known so far.

    >>> producer.send("flights", b"UA1545").result().offset                     # doctest: +SKIP
    41
    """

    __slots__ = ("_batch", "_number", "_waits")

    def __init__(self, batch: ProducerBatch, number: int, waits: DeliveryWaits) -> None:
        self._batch = batch
        self._number = number
        self._waits = waits

    @property
    def topic(self) -> str:
        """The record's topic."""
        return self._batch.partition.topic

    @property
    def partition(self) -> int:
        """The record's partition, which is chosen when the record is sent."""
        return self._batch.partition.partition

    def done(self) -> bool:
        """Returns whether the record is stored or given up."""
        return self._batch.outcome is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Waits until the record is stored, and returns its partition and offset. ``timeout`` is in seconds. The record
        is sent at once, without a wait for ``linger_ms``.

        In a transaction the record is stored before the commit, and read_committed readers do not see it yet. Under
        acks=0 the offset is -1. Raises the error of a record that was given up, which ``flush`` raises as well;
        RequestTimedOut; IllegalState if the producer was closed before. Must not be called in a callback."""
        from odradek.client.producer.engine import RecordMetadata

        outcome = self._batch.outcome or self._waits.outcome(self._batch, timeout)
        where = f"{self._batch.partition}: the record"
        if outcome is None and self._waits.has_ended:
            raise IllegalState(f"{where} was not delivered: the Producer was closed first")
        if outcome is None:
            raise RequestTimedOut(f"{where} was not delivered within {timeout:.3g} s")
        first, error = outcome
        if error is not None:
            raise error
        return RecordMetadata(*self._batch.partition, self._offset(first))

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Waits like ``result``. Returns the error of a record that was given up; None if the record is stored."""
        try:
            self.result(timeout)
        except Exception as error:
            if self.done():
                return error
            raise
        return None

    def _offset(self, first: int) -> int:
        return first + self._number if first >= 0 else -1

    def __repr__(self) -> str:
        outcome = self._batch.outcome
        if outcome is None:
            state = "waits"
        elif outcome[1] is not None:
            state = f"failed: {outcome[1]}"
        else:
            state = f"offset {self._offset(outcome[0])}" if outcome[0] >= 0 else "sent"
        return f"<Delivery to {self._batch.partition}: {state}>"
