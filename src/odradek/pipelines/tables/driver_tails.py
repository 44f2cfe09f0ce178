"""The last batches of the ranges of a micro-batch, looked up by the driver, for rows that Spark writes.

Spark's source reads its ranges in a process that knows nothing of a table. So with ``--writer spark`` the driver looks
at the batch before each range, and at the last batch of the range: with small fetches, which read the headers only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from odradek.client.config import as_config
from odradek.client.log_tails import LogReplaced, TailCheck
from odradek.client.reader import PartitionReader
from odradek.core.errors import OdradekError
from odradek.core.ids import LogTail, TopicPartition
from odradek.spark.offsets import data_loss
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.options import ReadOptions

T = TypeVar("T")

_AT_ONCE = 8
FETCH_BYTES = 4096
"""A broker sends at least one whole batch."""


class DriverTails:
    """The last batches of ranges. ``ids``: the topic ids when the ranges were planned."""

    def __init__(self, options: ReadOptions, planned: Sequence[Range], ids: Mapping[str, UUID | None]) -> None:
        self._options, self._planned, self._ids = options, planned, ids
        self._config = as_config(options.client, max_partition_fetch_bytes=FETCH_BYTES)

    def check(self, known: Mapping[TopicPartition, LogTail]) -> list[TopicPartition]:
        """Looks whether each log has the batch that was read before its range. Returns the partitions in which it
        cannot be seen. Raises DataLoss if a log has another batch, or logs a warning with ``failOnDataLoss=false``. All
        other faults are those of the read itself."""

        def look(item: Range) -> tuple[str, bool]:
            tail = known.get(item.partition)
            if tail is None or tail.end != item.start:
                return "", False
            check = TailCheck(tail)
            try:
                self._read(item.partition, item.start, check)
            except LogReplaced as error:
                return data_loss.replaced_message(item.partition, error.tail), False
            except OdradekError:
                return "", True
            return "", check.is_undecided

        found = self._each(look)
        lost = [text for text, _ in found if text]
        data_loss.fail_or_warn(lost, fail=self._options.fail_on_data_loss, file=self._options.losses_to)
        return [item.partition for item, (_, is_undecided) in zip(self._planned, found, strict=True) if is_undecided]

    def found(self) -> dict[TopicPartition, LogTail]:
        """Returns the last batches of the ranges, as far as they can be read."""
        return {tp: check.found for tp, check in self._looks().items() if check.found is not None}

    def compare(self, known: Mapping[TopicPartition, LogTail]) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Compares the last batches of the ranges, which end where those in ``known`` end. Returns the partitions whose
        log has another batch, and those in which it cannot be seen."""
        replaced, undecided = list[TopicPartition](), list[TopicPartition]()
        for tp, check in self._looks().items():
            if check.found != known[tp]:
                (undecided if check.found is None or check.is_rewritten else replaced).append(tp)
        return replaced, undecided

    def _looks(self) -> dict[TopicPartition, TailCheck]:
        def look(item: Range) -> TailCheck:
            tails = TailCheck()
            with contextlib.suppress(OdradekError):
                self._read(item.partition, item.end - 1, tails)
            return tails

        return {item.partition: check for item, check in zip(self._planned, self._each(look), strict=True)}

    def _read(self, partition: TopicPartition, start: int, tails: TailCheck) -> None:
        topic_id = self._ids.get(partition.topic)
        reader = PartitionReader(self._config, partition, ("offset",), topic_id=topic_id, tails=tails)
        for _ in reader.read_aborted(start, start + 1):
            pass

    def _each(self, look: Callable[[Range], T]) -> list[T]:
        with ThreadPoolExecutor(_AT_ONCE) as readers:
            return list(readers.map(look, self._planned))
