"""The commits that every group must have, computed only from requests and replies.

Each partition of each group has a history of requested changes, in the order in which they reached the coordinator. A
reply makes a change certain. If the coordinator crashes before the reply, the change is uncertain until the log is read
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, NamedTuple

from support.world import SimulationFailure, World

from odradek.codecs.offsets_topic import OffsetCommitValue
from odradek.core.errors import ErrorCode
from odradek.groups.messages import DeleteGroups, OffsetCommit, OffsetCommitReply, OffsetDelete, OffsetFetch
from odradek.groups.offsets.commit_plan import PlannedCommits

UNCERTAIN = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.unknown_server_error,
}
"""A reply may have one of these errors although the records of its request are in the log."""


class Key(NamedTuple):
    group: str
    topic: str
    partition: int


class Fate(Enum):
    OPEN = "open"
    DONE = "done"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Change:
    """A requested change of one committed offset. ``offset`` None: the commit is removed. ``by``: the requester."""

    number: int
    offset: int | None
    by: str
    topic_id: bytes | None = None
    fate: Fate = Fate.OPEN
    may_go_back: bool = False
    """The member owns the partition of a deleted topic and commits for a new topic of this name, as in Kafka."""


NEVER = Change(-1, None, "none", None, Fate.DONE)


class Ledger:
    """``going_back_allowed``: a member may commit a lower offset than before, because an old request may arrive late.

    ``owns_of_deleted`` returns whether a member owns a partition of a deleted topic with the key's topic name. Names
    do not tell two topics apart, so a classic member may commit for the new topic until it joins again.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = count()
        self._histories: dict[Key, list[Change]] = {}
        self._index: dict[str, int] = {}  # by group: the partition of the offsets topic
        self.going_back_allowed = False
        self.owns_of_deleted: Callable[[Key, str], bool] = lambda key, member: False
        self.commits = 0
        self.fetches = 0

    # --- changes ----------------------------------------------------------------------------------------------

    def _add(self, key: Key, offset: int | None, by: str, topic_id: bytes | None = None) -> Change:
        change = Change(next(self._numbers), offset, by, topic_id, may_go_back=self.owns_of_deleted(key, by))
        self._histories.setdefault(key, [NEVER]).append(change)
        return change

    def _drop(self, key: Key, change: Change) -> None:
        history = self._histories[key]
        self._histories[key] = [one for one in history if one is not change]

    def _finish(self, changes: list[tuple[Key, Change]], error: ErrorCode) -> None:
        for key, change in changes:
            if error is ErrorCode.none:
                self._done(key, change)
            elif error in UNCERTAIN:
                change.fate = Fate.UNKNOWN
            else:
                self._drop(key, change)

    def _done(self, key: Key, change: Change) -> None:
        change.fate = Fate.DONE
        history = self._histories[key]
        before = history[history.index(change) - 1]
        if (
            change.by.startswith("m")
            and not self.going_back_allowed
            and not (change.may_go_back or before.may_go_back)
            and change.offset is not None
            and before.fate is Fate.DONE
            and before.offset is not None
            and change.offset < before.offset
        ):
            text = f"{key}: {change.by} commits {change.offset}, {before.by} had committed {before.offset}"
            raise SimulationFailure(text, key.group)
        while len(history) > 1 and history[1].fate is Fate.DONE:
            del history[0]

    def commit(self, index: int, request: OffsetCommit) -> Callable[[OffsetCommitReply], None]:
        self._index[request.group_id] = index
        by = getattr(request, "group_instance_id", None) or request.member_id or "outside"
        changes = [
            (key, self._add(key, row[1], by, topic_id))
            for topic, topic_id, rows in request.topics
            for row in rows
            for key in (Key(request.group_id, topic, row[0]),)
        ]
        return lambda reply: self._committed(changes, reply)

    def _committed(self, changes: list[tuple[Key, Change]], reply: OffsetCommitReply) -> None:
        self.commits += reply.error is ErrorCode.none
        for key, change in changes:
            refused = (reply.refused or {}).get((key.topic, key.partition))
            self._finish([(key, change)], reply.error if refused is None else refused)

    def planned(self, index: int, request: PlannedCommits) -> Callable[[OffsetCommitReply], None]:
        plan, at = request.plan, 0
        self._index[plan.request.group_id] = index
        changes = []
        by = plan.request.member_id or "outside"
        while at < len(request.offsets):
            for topic, topic_id, rows in plan.request.topics:
                for row in rows:
                    key = Key(plan.request.group_id, topic, row[0])
                    changes.append((key, self._add(key, request.offsets[at], by, topic_id)))
                    at += 1
        return lambda reply: self._committed(changes, reply)

    def delete(self, index: int, request: OffsetDelete) -> Callable[[Any], None]:
        changes = [
            (key, self._add(key, None, "admin"))
            for topic, partitions in request.topics
            for partition in partitions
            for key in (Key(request.group_id, topic, partition),)
            if key in self._histories
        ]

        def deleted(reply: Any) -> None:
            errors = {(topic, row[0]): row[1] for topic, rows in reply.topics for row in rows}
            for key, change in changes:
                self._finish([(key, change)], reply.error or errors[key.topic, key.partition])

        return deleted

    def delete_groups(self, index: int, request: DeleteGroups) -> Callable[[Any], None]:
        changes = [
            (key, self._add(key, None, "admin")) for key in list(self._histories) if key.group in request.group_ids
        ]

        def deleted(reply: Any) -> None:
            errors = dict(reply)
            for key, change in changes:
                self._finish([(key, change)], errors[key.group])

        return deleted

    def topic_deleted(self, index: int, topic: str, *, certain: bool) -> None:
        for key in [key for key in self._histories if key.topic == topic and self._index[key.group] == index]:
            change = self._add(key, None, "topic deleted")
            change.fate = Fate.DONE if certain else Fate.UNKNOWN

    def topics_known(self, index: int, topic_id: Callable[[str], bytes | None], *, certain: bool) -> None:
        """Commits for deleted topics, or for recreated ones of the same name, are removed, too."""
        for key, history in list(self._histories.items()):
            if self._index[key.group] != index or history[-1].offset is None:
                continue
            now, then = topic_id(key.topic), history[-1].topic_id
            if now is None or (then is not None and then != now):
                self._add(key, None, "topic gone").fate = Fate.DONE if certain else Fate.UNKNOWN

    def expire(self, index: int, key: tuple[str, str, int]) -> None:
        """The coordinator has just made this tombstone. Its append may still fail."""
        self._add(Key(*key), None, "expired").fate = Fate.UNKNOWN

    # --- expected state ---------------------------------------------------------------------------------------

    @staticmethod
    def _possible(history: list[Change], before: int, *, open_too: bool) -> list[Change]:
        """Returns the changes below ``before`` that may be in effect: newest first, down to the newest certain one.

        ``open_too``: also changes without a reply. The reply to a fetch comes after the replies to all earlier commits.
        """
        found = []
        for change in reversed(history):
            if change.number < before:
                if change.fate is Fate.OPEN and not open_too:
                    continue
                found.append(change)
                if change.fate is Fate.DONE:
                    break
        return found

    def fetch(self, request: OffsetFetch) -> Callable[[Any], None]:
        number = next(self._numbers)

        def fetched(reply: Any) -> None:
            if reply.error is not ErrorCode.none:
                return
            self.fetches += 1
            seen = {Key(request.group_id, topic, row[0]): row[1] for topic, rows in reply.topics for row in rows}
            if request.topics is None:
                for key in self._histories:
                    if key.group == request.group_id:
                        seen.setdefault(key, -1)
            for key, offset in seen.items():
                self._saw(key, None if offset == -1 else offset, number, "fetched")

        return fetched

    def _saw(self, key: Key, offset: int | None, before: int, how: str) -> None:
        possible = self._possible(self._histories.get(key, [NEVER]), before, open_too=how == "holds")
        if all(change.offset != offset for change in possible):
            text = f"{key}: {how} {offset}, may be {[f'{one.offset} ({one.by})' for one in possible]}"
            raise SimulationFailure(text, key.group)

    def settle(self, index: int, committed: Callable[[Key], OffsetCommitValue | None], *, certain: bool) -> None:
        """Compares the state after a load of the log. If ``certain``, this state decides all open changes."""
        before = next(self._numbers)
        for key, history in self._histories.items():
            if self._index[key.group] != index:
                continue
            for change in history:
                if change.fate is Fate.OPEN:
                    change.fate = Fate.UNKNOWN
            value = committed(key)
            offset = None if value is None else value.offset
            self._saw(key, offset, before, "loaded")
            if not certain:
                continue
            topic_id = None if value is None else value.topic_id
            # The loaded state keeps the number of the newest change: the reply to an earlier fetch may still follow.
            self._histories[key] = [Change(history[-1].number, offset, "loaded", topic_id, Fate.DONE)]

    def compare(self, committed: Callable[[Key], OffsetCommitValue | None]) -> None:
        """Checks that the state agrees with the history. Called when no request is in flight."""
        before = next(self._numbers)
        for key in self._histories:
            value = committed(key)
            self._saw(key, None if value is None else value.offset, before, "holds")
