"""The commits of Kafka Connect's Iceberg sink, as the summaries of a table's snapshots show them.

The sink's coordinator writes into each snapshot the id of its commit, and under ``kafka.connect.offsets.<control
topic>.<group>`` the offsets of its control topic. They say nothing about the source topics: the rows decide whether the
table is whole. But they show where two coordinators have committed, which is how rows come twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from odradek.text.json_depth import parse_json

_OFFSETS = "kafka.connect.offsets."
COMMIT_ID = "kafka.connect.commit-id"


class SnapshotSummary(NamedTuple):
    """A snapshot: its id, and what its summary says."""

    id: int
    summary: Mapping[str, str]


class SetBack(NamedTuple):
    """A snapshot that stands before an earlier one: at ``offset`` of a partition of the control topic, where the
    snapshot ``earlier`` stood at ``before``."""

    snapshot: int
    partition: int
    offset: int
    earlier: int
    before: int


@dataclass(frozen=True, slots=True)
class SinkCommits:
    """The commits of one sink. ``name``: its control topic and its group, joined by a dot. ``snapshots``: how many
    snapshots they have made. ``again``: ids of commits that several snapshots have, with these snapshots."""

    name: str
    snapshots: int
    again: Mapping[str, tuple[int, ...]]
    set_back: tuple[SetBack, ...]


def sinks_of(snapshots: Iterable[SnapshotSummary]) -> list[SinkCommits]:
    """Returns the sinks that have written a table. ``snapshots``: the ancestors of the current one, oldest first."""
    found: dict[str, _Sink] = {}
    for one in snapshots:
        for key, text in one.summary.items():
            if key.startswith(_OFFSETS):
                name = key.removeprefix(_OFFSETS)
                found.setdefault(name, _Sink()).add(one, text)
    return [sink.commits(name) for name, sink in sorted(found.items())]


class _Sink:
    def __init__(self) -> None:
        self._snapshots = 0
        self._by_id: dict[str, list[int]] = {}
        self._highest: dict[int, tuple[int, int]] = {}  # partition of the control topic → offset, snapshot
        self._set_back: list[SetBack] = []

    def add(self, one: SnapshotSummary, text: str) -> None:
        self._snapshots += 1
        if commit := one.summary.get(COMMIT_ID):
            self._by_id.setdefault(commit, []).append(one.id)
        for partition, offset in _offsets_of(text).items():
            before, earlier = self._highest.get(partition, (-1, 0))
            if offset < before:
                self._set_back.append(SetBack(one.id, partition, offset, earlier, before))
            else:
                self._highest[partition] = offset, one.id

    def commits(self, name: str) -> SinkCommits:
        again = {commit: tuple(ids) for commit, ids in self._by_id.items() if len(ids) > 1}
        return SinkCommits(name, self._snapshots, again, tuple(self._set_back))


def _offsets_of(text: str) -> dict[int, int]:
    """Returns the offsets by the partitions of the control topic; empty if the text is not the sink's."""
    try:
        return {int(partition): int(offset) for partition, offset in parse_json(text).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
