"""The log bounds of a history, by partition and time: what a monitor knew at each of its polls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.log_ends import LogEnds, Logs, PartitionOffset
from odradek.history.records.column_values import numbers

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """The bounds of a partition when they changed; -1: no answer. ``times`` in ms, ascending."""

    times: Array
    starts: Array
    ends: Array


class KnownEnds:
    """``polls``: the times of all polls in ms, ascending."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        whole = [table for table in tables if table.num_rows]
        self.polls, self._partitions = _NONE, {}
        if not whole:
            return
        table = pa.concat_tables(whole).sort_by("time").combine_chunks()
        times = numbers(table.column("time").combine_chunks()) // 1000
        is_poll = pc.is_null(table.column("topic")).to_numpy()
        self.polls = np.unique(times[is_poll])
        rows = np.flatnonzero(~is_poll)
        chosen = table.take(pa.array(rows))
        topics = pc.dictionary_encode(chosen.column("topic").combine_chunks()) if len(rows) else None
        if topics is None:
            return
        partitions = numbers(chosen.column("partition").combine_chunks()).astype(np.int64)
        starts = numbers(chosen.column("log_start_offset").combine_chunks())
        ends = numbers(chosen.column("log_end_offset").combine_chunks())
        names = topics.dictionary.to_pylist()
        codes = (topics.indices.to_numpy().astype(np.int64) << 32) | (partitions & 0xFFFFFFFF)
        order = np.argsort(codes, kind="stable")
        bounds = np.flatnonzero(np.append(True, codes[order][1:] != codes[order][:-1]))
        for begin, end in zip(bounds, np.append(bounds[1:], len(order)), strict=True):
            at = order[begin:end]
            tp = TopicPartition(names[int(codes[at[0]]) >> 32], int(partitions[at[0]]))
            self._partitions[tp] = PartitionEnds(times[rows][at], starts[at], ends[at])

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._partitions)

    @property
    def last_ms(self) -> int:
        """Returns the time of the newest poll; -1 without one."""
        return int(self.polls[-1]) if len(self.polls) else -1

    def at(self, tp: TopicPartition, times_ms: Array, known_for_ms: int | None = None) -> Array:
        """Returns the log end offsets that the newest poll before each time knew; -1: unknown. ``known_for_ms``: older
        polls do not count."""
        found = self._partitions.get(tp)
        if found is None or not len(self.polls):
            return np.full(len(times_ms), -1, np.int64)
        poll = np.searchsorted(self.polls, times_ms, side="right") - 1
        polled = self.polls[np.maximum(poll, 0)]
        row = np.searchsorted(found.times, polled, side="right") - 1
        is_known = (poll >= 0) & (row >= 0)
        if known_for_ms is not None:
            is_known &= polled >= times_ms - known_for_ms
        known: Array = np.where(is_known, found.ends[np.maximum(row, 0)], -1)
        return known

    def ends_of(self, wanted: Sequence[PartitionOffset], known_for_ms: int) -> dict[PartitionOffset, int]:
        """Returns the log end offsets of partitions at times in ms. Unknown ones are left out."""
        found = {}
        for tp, ms in wanted:
            end = int(self.at(tp, np.array([ms]), known_for_ms)[0])
            if end >= 0:
                found[tp, ms] = end
        return found

    def logs(self, moments_us: Array, now_us: int, retention: tuple[int, bool]) -> Logs:
        """Returns what the analysis of a history uses, at moments in microseconds."""
        by_partition = {}
        for tp, found in self._partitions.items():
            known = np.flatnonzero(found.ends >= 0)
            if not len(known):
                continue
            ends = self.at(tp, moments_us // 1000)
            times = np.where(ends >= 0, moments_us, -1)
            by_partition[tp] = LogEnds(int(found.starts[known[-1]]), int(found.ends[known[-1]]), ends, times)
        return Logs(now_us, moments_us, *retention, by_partition)
