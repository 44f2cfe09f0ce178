"""The batches that a follower has fetched from its leader: their check, and the groups in which they are written."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.batches.control import read_control
from odradek.batches.header import BatchHeader, Buffer, crc_is_valid, scan
from odradek.batches.steps import BatchSteps
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH
from odradek.storage.appends import AssignedBatches
from odradek.storage.client_batch import Batches
from odradek.storage.segments.salvage import MAX_RELATIVE_OFFSET
from odradek.storage.segments.segment import AppendedBatch

BATCHES_AT_ONCE = 250
"""The batches that one step checks or writes: about a millisecond."""


class UnexpectedOffset(KafkaError):
    """A follower's log cannot take these batches: the first one begins before the log's end.

    ``first_offset`` and ``last_offset``: the offsets of the fetched batches.
    """

    def __init__(self, first_offset: int, last_offset: int, end_offset: int) -> None:
        super().__init__(
            ErrorCode.unknown_server_error,
            f"the fetched offsets {first_offset} to {last_offset} begin before the log's end, {end_offset}",
        )
        self.first_offset = first_offset
        self.last_offset = last_offset


def check_fetched(data: Buffer, end_offset: int, leader_epoch: int, last_epoch: int = NO_EPOCH) -> BatchSteps[Batches]:
    """Checks fetched batches like Kafka's ``appendAsFollower``, in steps. Returns those that the log may take.

    The offsets have to rise, from the log's end on, but may have gaps: the leader may have compacted its log. A last
    batch that is cut off is left out, as a leader may cut a reply anywhere. Batches from the first one with an epoch
    above ``leader_epoch`` on are left out, too: this node does not know their leader yet (KAFKA-18723). ``last_epoch``:
    that of the log's last record. No CRC protects an epoch, so one that falls is damage: the log would forget where the
    later epochs begin. Raises CorruptRecord if any other batch is damaged, UnexpectedOffset.
    """
    taken: list[tuple[int, BatchHeader]] = []
    following, is_below = -1, False
    for pos, header in scan(data):
        if header.leader_epoch > leader_epoch:
            break
        is_below |= header.base_offset < end_offset  # ``check_beginning`` refuses all of them
        if header.leader_epoch < last_epoch and not is_below:
            raise CorruptRecord(
                f"the fetched batch at offset {header.base_offset} has leader epoch {header.leader_epoch}, after epoch "
                f"{last_epoch}"
            )
        last_epoch = header.leader_epoch
        if header.base_offset < following:
            raise CorruptRecord(f"the fetched batch at offset {header.base_offset} follows offset {following - 1}")
        if not crc_is_valid(data, pos, header):
            raise CorruptRecord(f"the CRC of the fetched batch at offset {header.base_offset} does not match its bytes")
        if header.is_control:
            read_control(data, pos, header)
        following = header.last_offset + 1
        taken.append((pos, header))
        if len(taken) % BATCHES_AT_ONCE == 0:
            yield None
    check_beginning(taken, end_offset)
    return taken


def check_beginning(batches: Batches, end_offset: int) -> None:
    """Raises UnexpectedOffset if the batches begin before the log's end."""
    if batches and batches[0][1].base_offset < end_offset:
        raise UnexpectedOffset(batches[0][1].base_offset, batches[-1][1].last_offset, end_offset)


def group_size(batches: Sequence[tuple[int, BatchHeader]], room: int, segment_bytes: int) -> int:
    """Returns how many of the batches are written at once: no more than fit into one segment, but at least one.

    ``room``: the bytes that fit into the active segment. If the first batch does not fit, all get a new segment.
    """
    first = batches[0][1]
    left = segment_bytes if first.size_in_bytes > room else room
    for number, (_, header) in enumerate(batches[:BATCHES_AT_ONCE]):
        left -= header.size_in_bytes
        if number and (left < 0 or header.last_offset - first.base_offset > MAX_RELATIVE_OFFSET):
            return number
    return min(len(batches), BATCHES_AT_ONCE)


def as_fetched(data: Buffer, batches: Batches) -> AssignedBatches:
    """Returns consecutive batches with the offsets and epochs that they have."""
    (start, _), (last_start, last) = batches[0], batches[-1]
    appended = [
        AppendedBatch(header.base_offset, header.last_offset, header.max_timestamp, header.size_in_bytes)
        for _, header in batches
    ]
    end = last_start + last.size_in_bytes
    return AssignedBatches(
        [memoryview(data)[start:end]],
        end - start,
        appended,
        last.last_offset + 1,
        max(batch.max_timestamp for batch in appended),
        any(header.producer_id >= 0 for _, header in batches),
    )
