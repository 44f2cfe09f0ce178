"""What the monitor keeps of each group's own records: members, rebalances, and the newest events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from odradek.history.findings import FindingRules
from odradek.history.group_findings import MemberTimes, RebalanceBursts
from odradek.history.records.columns import Row
from odradek.history.records.group_events import GroupEvent, MemberChanges

MOST_GROUPS = 100_000
"""The number of groups whose records are kept. Those without a new record for the longest time go first."""
MOST_BURSTS = 100
"""The number of bursts of one group that are kept, the newest ones."""


class GroupTrack:
    """One group. ``events``: the first event with members, and the newest ones, as far as open keys need them."""

    __slots__ = ("_first_with_members", "_members", "_recent", "bursts", "times")

    def __init__(self, rules: FindingRules) -> None:
        self._members = MemberChanges()
        self._first_with_members: GroupEvent | None = None
        self._recent: list[GroupEvent] = []
        self.bursts = RebalanceBursts(rules)
        self.times = MemberTimes()

    def add(self, row: Row) -> GroupEvent:
        event = self._members.event(row)
        if event.members and self._first_with_members is None:
            self._first_with_members = event
        self._recent.append(event)
        self.bursts.add(event)
        del self.bursts.bursts[:-MOST_BURSTS]
        self.times.add(event)
        return event

    @property
    def last(self) -> GroupEvent:
        return self._recent[-1]

    @property
    def has_had_members(self) -> bool:
        return self._first_with_members is not None

    @property
    def events(self) -> list[GroupEvent]:
        first = self._first_with_members
        is_missing = first is not None and first.record_offset < self._recent[0].record_offset
        return [first, *self._recent] if is_missing and first is not None else list(self._recent)

    def forget_before(self, record_offset: int | None) -> None:
        """Forgets the events that no entry at or above this offset of the log needs; None: all but the newest."""
        keep = len(self._recent) - 1
        while record_offset is not None and keep > 0 and self._recent[keep].record_offset > record_offset:
            keep -= 1
        del self._recent[:keep]


class GroupTracks:
    """The tracks of all groups that have records of their own."""

    def __init__(self, rules: FindingRules) -> None:
        self._rules = rules
        self._tracks: OrderedDict[str, GroupTrack] = OrderedDict()
        self._grown: set[str] = set()

    def __len__(self) -> int:
        return len(self._tracks)

    def get(self, group: str) -> GroupTrack | None:
        return self._tracks.get(group)

    def items(self) -> Iterable[tuple[str, GroupTrack]]:
        return self._tracks.items()

    def add(self, row: Row) -> GroupEvent:
        """Adds a row of ``group_events.event_rows``, in log order."""
        group = row["group"]
        track = self._tracks.get(group)
        if track is None:
            track = self._tracks[group] = GroupTrack(self._rules)
            if len(self._tracks) > MOST_GROUPS:
                self._grown.discard(self._tracks.popitem(last=False)[0])
        self._tracks.move_to_end(group)
        self._grown.add(group)
        return track.add(row)

    def forget(self, group: str) -> None:
        self._tracks.pop(group, None)
        self._grown.discard(group)

    def forget_before(self, oldest: dict[str, int]) -> None:
        """Forgets events. ``oldest``: for groups with open keys the offset of their oldest kept entry."""
        for group in self._grown:
            self._tracks[group].forget_before(oldest.get(group))
        self._grown &= oldest.keys()

    def events_of(self, groups: Iterable[str]) -> Iterator[tuple[str, list[GroupEvent]]]:
        for group in groups:
            if group in self._tracks:
                yield group, self._tracks[group].events
