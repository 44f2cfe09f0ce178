"""The source offset of a micro-batch, which Spark stores as JSON in the checkpoint. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.text.printable import shortened

Offsets = Mapping[TopicPartition, int]
TopicIds = Mapping[str, UUID | None]
"""None for a broker without topic ids."""

EXTRA = "$odradek"


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A decoded source offset; ``plan`` has the rules.

    * ``positions``: the next offsets. ``origins``: the JSON's ``from``. ``followed``: reset ids.
    * ``ids``: the topic ids. ``epochs``: the epochs of the leaders that had all records below the position, if known.
    * ``absent``: the next offsets of partitions that the query has read and does not read now, because they were
      missing. ``ids`` and ``epochs`` have them, too.
    * ``query``: the query's id, empty in older checkpoints.
    * ``after``: the ``digest`` of the source offset after which this one was planned, empty in older checkpoints.
    * ``is_initial``: the source offset before the first micro-batch. Other source offsets can be without positions too,
      if ``subscribePattern`` matches no topic yet.
    """

    positions: Offsets = field(default_factory=dict)
    origins: Offsets = field(default_factory=dict)
    followed: Mapping[TopicPartition, str] = field(default_factory=dict)
    ids: Mapping[str, UUID] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    absent: Offsets = field(default_factory=dict)
    query: str = ""
    is_initial: bool = False
    after: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SourceOffset:
        """Reads the JSON of ``to_json``, or of Spark's own Kafka source. Raises ConfigError."""
        try:
            extra = value.get(EXTRA, {})
            topics = {topic: partitions for topic, partitions in value.items() if topic != EXTRA}
            return cls(
                positions=flat(topics, int),
                origins=flat(extra.get("from", {}), int),
                followed=flat(extra.get("followed", {}), str),
                ids={topic: UUID(topic_id) for topic, topic_id in extra.get("ids", {}).items()},
                epochs=flat(extra.get("epochs", {}), int),
                absent=flat(extra.get("absent", {}), int),
                query=str(extra.get("query", "")),
                is_initial=not value,
                after=str(extra.get("after", "")),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the checkpoint has an offset that is not from this source: {shortened(str(value))}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON value, always in the same order, because Spark compares the text."""
        if self.is_initial:
            return {}
        extra: dict[str, Any] = {}
        parts = ("from", self.origins), ("followed", self.followed), ("absent", self.absent)
        for name, part in parts:
            if part:
                extra[name] = nested(part)
        if self.ids:
            extra["ids"] = {topic: str(topic_id) for topic, topic_id in sorted(self.ids.items())}
        if self.epochs:
            extra["epochs"] = nested(self.epochs)
        if self.query:
            extra["query"] = self.query
        if self.after:
            extra["after"] = self.after
        return nested(self.positions) | ({EXTRA: extra} if extra or not self.positions else {})

    @property
    def offsets(self) -> Offsets:
        """The next offset of every partition that the query has read, also of the absent ones."""
        return {**self.absent, **self.positions}

    @property
    def digest(self) -> str:
        """64 bits of the digest of ``offsets``, in hexadecimal form."""
        lines = sorted(f"{tp} {offset}" for tp, offset in self.offsets.items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def epochs_of(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the epochs of those partitions that are known."""
        return {tp: epoch for tp, epoch in self.epochs.items() if tp in partitions}

    def with_present(self, partitions: Collection[TopicPartition]) -> SourceOffset:
        """Returns this source offset with positions for those absent partitions that are read now. They stay in
        ``absent``, so that the plan notes where they start."""
        back = {tp: offset for tp, offset in self.absent.items() if tp in partitions}
        return replace(self, positions={**self.positions, **back}) if back else self

    def absent_after(self, ends: Offsets, ids: TopicIds) -> Offsets:
        """Returns the offsets of partitions that were read and are not in ``ends``. Leaves out those of topics that
        were deleted and created again: their offsets have no meaning in the new topic."""
        gone = {tp: offset for tp, offset in self.offsets.items() if tp not in ends}
        return {tp: offset for tp, offset in gone.items() if not self.is_of_another_topic(tp.topic, ids)}

    def is_of_another_topic(self, topic: str, ids: TopicIds) -> bool:
        """Returns whether the topic of this name was deleted and created again since it was read."""
        known, now = self.ids.get(topic), ids.get(topic)
        return known is not None and now is not None and known != now


INITIAL = SourceOffset(is_initial=True)


def flat(value: Mapping[str, Mapping[str, Any]], kind: Callable[[Any], Any]) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(topic, int(number)): kind(item)
        for topic, partitions in value.items()
        for number, item in partitions.items()
    }


def nested(value: Mapping[TopicPartition, object]) -> dict[str, dict[str, object]]:
    nested: dict[str, dict[str, object]] = {}
    for topic, number in sorted(value):
        nested.setdefault(topic, {})[str(number)] = value[TopicPartition(topic, number)]
    return nested
