"""The partitions of a topic that gets records, for errors that name the line of a record."""

from __future__ import annotations

from collections.abc import Callable


class TopicPartitions:
    """The partitions of the topic. A record for another one is refused where it is read, so the error has its line."""

    def __init__(self, topic: str, count: Callable[[], int]) -> None:
        self._topic = topic
        self._count = count
        self._known = 0

    def check(self, partition: int) -> None:
        """Raises ValueError for a partition that the topic lacks."""
        if not 0 <= partition < self._known:
            self._known = self._count()  # partitions may have been added
        if not 0 <= partition < self._known:
            held = f"topic {self._topic} has no partition {partition} (it has {self._known})"
            if partition < self._known:
                raise ValueError(f"{held}: partitions begin at 0")
            raise ValueError(
                f"{held}: odradek topics alter {self._topic} --partitions {partition + 1} adds it; without the field or"
                " column partition, the keys choose"
            )
