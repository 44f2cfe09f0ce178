"""Resolution of the patterns that KIP-848 members subscribe with: its schedule, and the records of matched topics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping

from odradek.core.effects import ResultParts, SetTimer, Work, result_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import hash_order, java_string_hash
from odradek.core.pace import Pace
from odradek.groups.config import GroupConfig
from odradek.groups.kip848 import records, regex
from odradek.groups.kip848.group import GroupCatalog, Kip848Group, MemberChange
from odradek.groups.kip848.member import ResolvedPattern
from odradek.groups.kip848.timers import PATTERNS

_PAUSE_MS = 10_000
_MAX_PATTERNS = 100
"""The largest number of different patterns in a group. Each of them may match all topics."""
_MATCHES_AT_ONCE = 500
_MATCHES_PER_PATTERN = 100
"""The compilation of a pattern takes as long as this number of matches."""
_RECORD_OVERHEAD_BYTES = 100
_LENGTH_BYTES, _CHAR_BYTES = 2, 4  # sizes of a name's length field, of the longest UTF-8 character


class PatternResolution:
    """Resolves the patterns of ``groups``."""

    def __init__(
        self,
        config: GroupConfig,
        catalog: GroupCatalog,
        groups: Mapping[str, Kip848Group],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._groups = groups
        self.batch_bytes: Callable[[], int] = lambda: sys.maxsize
        """Returns the largest number of bytes of records in a batch."""
        self.due: set[str] = set()
        """The ids of the groups whose timer is set or whose patterns are being resolved."""
        self._describers: dict[str, Callable[[str], bool]] = {}
        """By the id of a due group: which topics the client may describe whose request made the group due."""
        self._topics_created_at = -1  # the catalogue's version after the last creation of a topic

    def on_topics_created(self) -> None:
        self._topics_created_at = self._catalog.version

    def note(self, change: MemberChange, out: ResultParts) -> tuple[bool, bool]:
        """Returns whether the member's pattern has changed, and whether the topics of the changed pattern are known.

        The second value is False if the pattern has not changed, and True if the new pattern is empty. Schedules a
        resolution if necessary. Raises KafkaError (INVALID_REGULAR_EXPRESSION, GROUP_MAX_SIZE_REACHED).
        """
        group, before, after = change.group, change.member.pattern, change.updated.pattern
        counts = group.subscriptions.patterns
        is_known = is_new = False
        if before != after:
            if before and counts[before] == 1:
                out.records.append(records.pattern_tombstone(group.group_id, before))
            if after and not counts[after]:
                regex.check_pattern(after)
                if len(counts) >= _MAX_PATTERNS:
                    text = f"The consumer group has reached its maximum of {_MAX_PATTERNS} regular expressions."
                    raise KafkaError(ErrorCode.group_max_size_reached, text)
                is_new = True
            else:
                is_known = not after or after in group.patterns
        if (is_new or counts) and self._should_resolve(change, is_new):
            self.due.add(group.group_id)
            if change.may_describe is not None:
                self._describers[group.group_id] = change.may_describe
            out.effects.append(SetTimer((PATTERNS, group.group_id), change.now_ms))
        return before != after, is_known

    def on_refusal(self, now_ms: int, group_id: str, out: ResultParts) -> None:
        """Takes a group out of ``due`` if ``note`` has put its timer into ``out``. A refused request sets no timer."""
        if SetTimer((PATTERNS, group_id), now_ms) in out.effects:
            self._forget(group_id)

    def _forget(self, group_id: str) -> None:
        self.due.discard(group_id)
        self._describers.pop(group_id, None)

    def _should_resolve(self, change: MemberChange, is_new: bool) -> bool:
        group = change.group
        if group.group_id in self.due:
            return False
        subscribed = change.subscriptions().patterns
        if not subscribed:
            return False
        oldest = next(iter(group.patterns.values()), None)
        if oldest is None:
            return True
        newest = next(reversed(group.patterns.values()))
        return change.now_ms - newest.timestamp_ms > _PAUSE_MS and (
            is_new or len(subscribed) != len(group.patterns) or self._is_due(oldest, change.now_ms)
        )

    def _is_due(self, resolved: ResolvedPattern | None, now_ms: int) -> bool:
        """Returns whether a pattern may match other topics than before, or its resolution is too old."""
        return (
            resolved is None
            or resolved.version < self._topics_created_at
            or now_ms - resolved.timestamp_ms > self._config.consumer_regex_refresh_interval_ms
        )

    def resolve(self, now_ms: int, group_id: str, pace: Pace, out: ResultParts) -> Iterator[None]:
        """Finds the topics that a group's new and outdated patterns match.

        It does so at once for few matches, and in the background for many.
        """
        group = self._groups.get(group_id)
        if group is None or not group.subscriptions.patterns:
            self._forget(group_id)
            return
        version, names = self._catalog.version, list(self._catalog.topic_names())
        known = group.patterns
        patterns = [each for each in group.subscriptions.patterns if self._is_due(known.get(each), now_ms)]
        steps = regex.resolve_in_steps(patterns, names)
        if len(patterns) * (len(names) + _MATCHES_PER_PATTERN) <= _MATCHES_AT_ONCE:
            yield from self.take(now_ms, group_id, result_of(steps), version, pace=pace, out=out)
        else:
            out.effects.append(Work((PATTERNS, group_id, version), steps))

    def take(
        self,
        now_ms: int,
        group_id: str,
        topics_of: Mapping[str, frozenset[str]],
        version: int,
        *,
        pace: Pace,
        out: ResultParts,
    ) -> Iterator[None]:
        """Writes the records of resolved patterns, and starts a new epoch if the topics or their metadata have changed.

        A pattern gets no topics if they do not fit in one record, and none that the client may not describe.
        """
        may_describe = self._describers.get(group_id)
        self._forget(group_id)
        group = self._groups.get(group_id)
        if group is None:
            return
        subscriptions = group.subscriptions.copy()
        is_new_epoch = False
        limit = self.batch_bytes() - _RECORD_OVERHEAD_BYTES
        for pattern in hash_order(topics_of, java_string_hash):
            if pattern not in group.subscriptions.patterns:
                continue  # no member has the pattern any more
            topics = topics_of[pattern]
            if may_describe is not None:
                topics = yield from _described(topics, may_describe, pace)
            if sum([len(topic) + _LENGTH_BYTES for topic in topics]) + _CHAR_BYTES * len(pattern + group_id) > limit:
                topics = frozenset()
            known = group.patterns.get(pattern)
            before = frozenset() if known is None else known.topics
            if before != topics:
                is_new_epoch = True
                subscriptions.add_resolved(before, -1)
                subscriptions.add_resolved(topics)
            resolved = ResolvedPattern(topics, version, now_ms)
            out.records.append((yield from records.pattern_in_steps(group_id, pattern, resolved, pace)))
        metadata_hash = yield from group.hash_in_steps(subscriptions, self._catalog, pace)
        if is_new_epoch or metadata_hash != group.metadata_hash:
            epoch = group.epoch + 1
            out.records.append(records.group_epoch(group_id, epoch, metadata_hash))
            group.note_refresh(now_ms, epoch)


def _described(
    topics: frozenset[str], may_describe: Callable[[str], bool], pace: Pace
) -> Generator[None, None, frozenset[str]]:
    """Returns the topics that the client may describe."""
    kept: set[str] = set()
    for topic in topics:
        if may_describe(topic):
            kept.add(topic)
        if pace.spend():
            yield
    return frozenset(kept)
