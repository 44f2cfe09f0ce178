"""Proofs that a batch belongs to a transaction which the coordinator knows (KIP-890), as in Kafka.

The broker makes a guard before it asks the coordinator. The batch that begins the transaction in this log needs this
guard. A marker that is written in between makes the guard invalid. So a batch that arrives after the end of its
transaction cannot begin another transaction, which nothing would end.
"""

from __future__ import annotations

from collections.abc import Generator

from odradek.batches.header import BatchHeader
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import Pace


class VerificationGuard:
    """A guard. Each one equals only itself."""

    __slots__ = ()


Guard = VerificationGuard | None


class Verification:
    """A verification that has begun. ``lowest_sequence``: the smallest first sequence of the waiting batches."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "noticed_ms", "supports_epoch_bump")

    def __init__(self, epoch: int, sequence: int, *, supports_epoch_bump: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.supports_epoch_bump = supports_epoch_bump
        self.noticed_ms = -1
        """The time of the first ``expire`` after the verification began; -1 before that."""


class Verifications:
    """The verifications of one log by producer id."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool) -> VerificationGuard:
        """Returns the producer's guard, a new one unless a verification has begun already."""
        known = self._by_producer.get(producer_id)
        if known is None:
            known = Verification(epoch, sequence, supports_epoch_bump=supports_epoch_bump)
            self._by_producer[producer_id] = known
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known.guard

    def is_valid(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        known = self._by_producer.get(producer_id)
        return known is not None and known.guard is guard

    def end(self, producer_id: int, epoch: int, guard: VerificationGuard | None) -> None:
        """Ends a verification that no batch has used, unless the guard belongs to a later epoch by now."""
        if self.is_valid(producer_id, guard) and self._by_producer[producer_id].epoch == epoch:
            del self._by_producer[producer_id]

    def check_sequence(self, header: BatchHeader, *, is_first: bool) -> None:
        """Checks the first sequence of a batch. ``is_first``: the state of the producer has no batch.

        Raises KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        known = self._by_producer.get(header.producer_id)
        if known is None:
            return
        sequence = header.base_sequence
        if known.supports_epoch_bump and is_first and sequence:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"sequence {sequence} of producer {header.producer_id} is not 0, and the log has none before it",
            )
        if sequence > known.lowest_sequence:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"sequence {sequence} of producer {header.producer_id} is after {known.lowest_sequence}, which is not "
                "written yet",
            )

    def note(self, header: BatchHeader) -> None:
        """Ends the producer's verification when its transactional batch or a marker is written.

        A marker does not end the verification of the next transaction, which has the epoch of the marker.
        """
        known = self._by_producer.get(header.producer_id)
        if known is None:
            return
        if header.is_control and known.supports_epoch_bump and header.producer_epoch == known.epoch:
            return
        del self._by_producer[header.producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> Generator[None, None, None]:
        """Removes, in steps, the verifications that an earlier call found at least ``expiration_ms`` ago."""
        pace = Pace()
        for producer_id, known in tuple(self._by_producer.items()):
            if known.noticed_ms < 0:
                known.noticed_ms = now_ms
            elif now_ms - known.noticed_ms >= expiration_ms and self._by_producer.get(producer_id) is known:
                del self._by_producer[producer_id]
            if pace.spend():
                yield
