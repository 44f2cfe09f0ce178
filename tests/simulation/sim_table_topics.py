"""The topics of a simulated world of a table: partitions, their records, and which of them the pipeline reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sim_table_store import ADDED, FIRST_ROWS, GROWN, LATER, OTHER, REPLAYED, TP

from odradek.core.ids import TopicPartition


@dataclass
class SimTopics:
    """``ends``: the log ends of the partitions that exist. ``starts``: log starts that are not 0. ``read``: the
    partitions that a run reads now, the first one first. ``skipped``: the offset at which the table may have begun to
    read a partition with ``--from latest``: earlier records are not missed."""

    ends: dict[TopicPartition, int] = field(default_factory=lambda: {TP: 10})
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    read: list[TopicPartition] = field(default_factory=lambda: [TP])
    skipped: dict[TopicPartition, int] = field(default_factory=dict)
    generation: int = 0
    """How often the topic was created again that is only replayed at first."""

    def id_of(self, topic: str) -> str:
        """Returns the id of a topic."""
        return f"id-{topic}-{self.generation}" if topic == REPLAYED.topic else f"id-{topic}"

    def add_other(self) -> None:
        self.ends[OTHER] = 10
        self.read_other(is_read=True)

    def read_other(self, *, is_read: bool) -> None:
        if is_read != (OTHER in self.read):
            (self.read.append if is_read else self.read.remove)(OTHER)

    def add_partition(self, tp: TopicPartition, start: int) -> None:
        """A topic gets a partition. It is read if the topic is."""
        self.ends[tp] = self.starts[tp] = start
        if any(one.topic == tp.topic for one in self.read):
            self.read.append(tp)

    def subscribe(self, topic: str) -> None:
        self.read += [tp for tp in self.ends if tp.topic == topic and tp not in self.read]

    @property
    def missing(self) -> list[TopicPartition]:
        """The partitions that may still be added."""
        return [tp for tp in (ADDED, LATER, GROWN) if tp not in self.ends and (tp != GROWN or LATER in self.ends)]

    def first_of(self, tp: TopicPartition) -> int:
        """The first offset of a partition that a table has to have."""
        return max(self.starts.get(tp, 0), self.skipped.get(tp, 0))

    def rows_below(self, tp: TopicPartition, offset: int) -> range:
        """The rows of a partition that a table has to have if it stands at this offset."""
        return range(FIRST_ROWS[tp] + self.first_of(tp), FIRST_ROWS[tp] + offset)

    def rows(self) -> Iterator[int]:
        """The rows that a table has to have which has read all partitions that are read now."""
        for tp in self.read:
            yield from self.rows_below(tp, self.ends[tp])


__all__ = ["SimTopics"]
