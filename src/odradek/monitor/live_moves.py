"""Rewinds and jumps as they happen: the findings of ``history.rewinds`` between commits, without the whole history.

For each key the newest commit is kept, in arrays. A commit that may be a move opens its key: it is lower than the
commit before it, has the mark of a reset, comes from outside of a group that had members, or follows a deletion. From
then on, all entries of the key are kept, behind the last commit before them. ``review`` gives them to the rules of the
batch analysis. When later entries can no longer change what the rules say, the findings are final and the key closes.

So a finding may change while its key is open: the next commit shows that a lower one was stored out of order, or that
six commits from outside are those of a consumer that joins no group. The look-back is bounded: ``MOST_ENTRIES`` entries
of one key, ``MOST_DELETED`` deleted keys, and ``MOST_MOVES`` final findings.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.findings import Evidence, Finding, FindingRules
from odradek.history.log_ends import Logs
from odradek.history.records.journal import Commits, Key
from odradek.history.rewinds import READER_RUN, CandidateMove, candidate_moves, candidate_rows, classify
from odradek.history.windows.commit_windows import writable
from odradek.monitor import move_kernels as kernels
from odradek.monitor.group_tracks import GroupTracks

MOST_ENTRIES = 1_000
MOST_DELETED = 10_000
MOST_MOVES = 10_000
_REVIEW_ROWS = 20_000
"""So many entries that no review has seen start one, so that a long read between two polls stays small."""
_ROOM = 1 << 16


class KeptEntry(NamedTuple):
    """An entry of an open key. Times are microseconds."""

    offset: int
    is_tombstone: bool
    time_us: int
    query: int
    is_marked: bool
    topic_id: int
    record_offset: int
    record_us: int


class EntryColumns(NamedTuple):
    """Entries of keys in log order. Times are microseconds. ``bits``: see ``move_kernels``. ``queries``: NOT_OURS for
    commits that are not a Spark query's."""

    offsets: Array
    times: Array
    record_offsets: Array
    record_times: Array
    queries: Array
    topic_ids: Array
    bits: Array
    are_deletions: Array


class _OpenKey:
    """``rows``: the kept entries. The first ``settled`` of them are no resets, and what is said of them is final."""

    __slots__ = ("is_new", "key", "moves", "record_partition", "rows", "settled")

    def __init__(self, key: Key, record_partition: int, rows: list[KeptEntry]) -> None:
        self.key, self.record_partition, self.rows = key, record_partition, rows
        self.settled, self.is_new = len(rows), True
        self.moves: list[CandidateMove] = []

    def extend(self, newest: KeptEntry) -> None:
        """Adds the newest commit to a run of which only some commits are kept."""
        if newest.record_offset > self.rows[-1].record_offset:
            self.rows.append(newest)
            self.settled += 1
        self.is_new = True


class LiveMoves:
    """See the module. ``key_of`` returns the key of a slot."""

    def __init__(self, rules: FindingRules, tracks: GroupTracks, key_of: Callable[[int], Key]) -> None:
        self._rules, self._tracks, self._key_of = rules, tracks, key_of
        self._newest = np.zeros((0, 4), np.int64)
        self._marks = np.zeros((0, 2), np.int32)
        self._states = np.zeros(0, np.uint8)
        self._open: dict[int, _OpenKey] = {}
        self._deleted: OrderedDict[Key, _OpenKey] = OrderedDict()
        self._runs: dict[int, _OpenKey] = {}
        self._runs_of_group: dict[str, set[int]] = {}
        self._final: deque[CandidateMove] = deque(maxlen=MOST_MOVES)
        self._waiting = 0

    @property
    def nbytes(self) -> int:
        return self._newest.nbytes + self._marks.nbytes + self._states.nbytes

    @property
    def newest(self) -> Array:
        """Returns offset, time, record offset and record time of the newest commit of each slot; times in µs."""
        return self._newest

    # --- entries ------------------------------------------------------------------------------------------------------

    def grow(self, slots: int) -> None:
        known = len(self._states)
        if slots <= known:
            return
        room = -(-slots // _ROOM) * _ROOM if slots > 1024 else slots
        for array in (self._newest, self._marks, self._states):
            array.resize((room, *array.shape[1:]), refcheck=False)
        self._newest[known:, 0] = -1

    def reopen(self, slot: int) -> None:
        """Opens the slot of a new key, if a key of the same name was deleted: its history goes on."""
        moves = self._deleted.pop(self._key_of(slot), None) if self._deleted else None
        if moves is not None:
            self._open[slot] = moves
            self._states[slot] = kernels.OPEN

    @property
    def groups_with_deletions(self) -> set[str]:
        return {key.group for key in self._deleted}

    def begin_event(self, group: str) -> None:
        """To be called before the entries of a batch with a record of this group: a run outside of it may end."""
        for slot in self._runs_of_group.pop(group, ()):
            run = self._runs.pop(slot, None)
            if run is not None and self._states[slot] == kernels.LONG_RUN:
                self._add_newest(run, slot)
                self._open[slot] = run
                self._states[slot] = kernels.OPEN

    def _add_newest(self, run: _OpenKey, slot: int) -> None:
        offset, time, record_offset, record_time = self._newest[slot].tolist()
        query, topic_id = self._marks[slot].tolist()
        run.extend(KeptEntry(offset, False, time, query, False, topic_id, record_offset, record_time))

    def add(self, slots: Array, entries: EntryColumns, record_partition: int) -> None:
        """Adds entries in log order. ``slots``: that of the key of each entry."""
        numbers = np.column_stack((entries.offsets, entries.times, entries.record_offsets, entries.record_times))
        marks = np.column_stack((entries.queries, entries.topic_ids)).astype(np.int32)
        chosen, before = np.empty(len(slots), np.uint8), np.empty((len(slots), 6), np.int64)
        kernels.choose(
            writable(slots, np.int64), writable(numbers, np.int64), writable(marks, np.int32),
            writable(entries.bits, np.uint8), writable(entries.are_deletions, np.bool_),
            self._newest, self._marks, self._states, chosen, before,
        )  # fmt: skip
        at = np.flatnonzero(chosen)
        if not len(at):
            return
        columns = (
            entries.offsets[at].tolist(), entries.are_deletions[at].tolist(), entries.times[at].tolist(),
            entries.queries[at].tolist(), ((entries.bits[at] & kernels.MARKED) != 0).tolist(),
            entries.topic_ids[at].tolist(), entries.record_offsets[at].tolist(), entries.record_times[at].tolist(),
        )  # fmt: skip
        places = at.tolist(), slots[at].tolist(), chosen[at].tolist()
        for place, slot, why, *values in zip(*places, *columns, strict=True):
            if why != kernels.KEPT:
                self._open[slot] = self._opened(slot, why, before[place].tolist(), record_partition)
            key = self._open[slot]
            key.rows.append(KeptEntry(*values))
            key.is_new = True
            if len(key.rows) > MOST_ENTRIES:
                del key.rows[0]
                key.settled = max(1, key.settled - 1)
        self._waiting += len(at)
        if self._waiting > _REVIEW_ROWS:
            self.review({})

    def _opened(self, slot: int, why: int, before: list[int], record_partition: int) -> _OpenKey:
        offset, time, record_offset, record_time, query, topic_id = before
        commit = KeptEntry(offset, False, time, query, False, topic_id, record_offset, record_time)
        run = self._runs.pop(slot, None)
        if why == kernels.FIRST_OF_RUN and run is not None:
            run.extend(commit)
            return run
        return _OpenKey(self._key_of(slot), record_partition, [commit] if offset >= 0 else [])

    def remove(self, slots: Iterable[int], *, forget: bool = False) -> None:
        """Removes keys, after the deletion of their offsets or, with ``forget``, with all that is known about them."""
        for slot in slots:
            self._newest[slot, 0], self._states[slot] = -1, kernels.CLOSED
            self._runs.pop(slot, None)
            moves = self._open.pop(slot, None)
            if moves is not None and not forget:
                self._deleted[moves.key] = moves
                if len(self._deleted) > MOST_DELETED:
                    self._final += self._deleted.popitem(last=False)[1].moves

    # --- findings -----------------------------------------------------------------------------------------------------

    def review(self, incomplete_below: Mapping[int, int]) -> None:
        """Gives the kept entries that are new to the rules, and closes the keys about which nothing can change."""
        self._waiting = 0
        items = [(slot, key) for slot, key in self._open.items() if key.is_new]
        items += [(-1, key) for key in self._deleted.values() if key.is_new]
        if items:
            self._judge(items, incomplete_below)
        oldest: dict[str, int] = {}
        for key in (*self._open.values(), *self._deleted.values(), *self._runs.values()):
            first = key.rows[0].record_offset
            oldest[key.key.group] = min(first, oldest.get(key.key.group, first))
        self._tracks.forget_before(oldest)

    def _judge(self, items: list[tuple[int, _OpenKey]], incomplete_below: Mapping[int, int]) -> None:
        commits = _commits([key for _, key in items])
        events = dict(self._tracks.events_of({key.key.group for _, key in items}))
        logs = Logs(0, np.zeros(0, np.int64))
        evidence = Evidence(commits, events, incomplete_below, logs, lambda records: {}, self._rules)
        rows = classify(evidence)
        ends = commits.starts[:-1] + [key.settled for _, key in items]
        rows.is_reset[np.arange(len(commits)) < ends[commits.key]] = False
        for _, key in items:
            key.moves, key.is_new = [], False
        for move in candidate_moves(evidence, rows):
            if move.row >= ends[commits.key[move.row]]:
                items[commits.key[move.row]][1].moves.append(move)
        last = commits.starts[1:] - 1
        is_final = ~(commits.is_tombstone[last] | rows.is_reset[last] | candidate_rows(commits, rows)[last])
        for number in np.flatnonzero(is_final).tolist():
            slot, key = items[number]
            if slot >= 0:
                self._close(slot, key, is_run=bool(rows.is_outside[last[number]]))

    def _close(self, slot: int, key: _OpenKey, *, is_run: bool) -> None:
        del self._open[slot]
        self._final += key.moves
        key.moves = []
        track = self._tracks.get(key.key.group)
        if is_run and track is not None and track.last.record_offset < key.rows[-1].record_offset:
            key.rows = key.rows[-READER_RUN - 1 :]
            key.settled = len(key.rows)
            self._runs[slot] = key
            self._runs_of_group.setdefault(key.key.group, set()).add(slot)
            self._states[slot] = kernels.LONG_RUN
        else:
            self._states[slot] = kernels.CLOSED

    def findings(self, end_of: Callable[[TopicPartition], int], group: str | None = None) -> Iterator[Finding]:
        """Yields the findings up to the newest ``review``. ``end_of`` returns a log end offset; -1 if it is unknown."""
        for one in self._moves():
            finding = one.finding
            if group is None or finding.group == group:
                end = end_of(TopicPartition(finding.topic or "", finding.partition or 0)) if one.least_end else -1
                if end < 0 or end >= one.least_end:
                    yield finding

    def _moves(self) -> Iterator[CandidateMove]:
        yield from self._final
        for key in (*self._open.values(), *self._deleted.values()):
            yield from key.moves


def _commits(keys: list[_OpenKey]) -> Commits:
    """Returns the kept entries in columns."""
    counts = [len(key.rows) for key in keys]
    columns: list[object] = list(zip(*(row for key in keys for row in key.rows), strict=True))
    offsets, tombstones, times, queries, marked, ids, record_offsets, record_times = (np.array(one) for one in columns)
    number = np.repeat(np.arange(len(keys), dtype=np.int32), counts)
    partitions = np.repeat(np.array([key.record_partition for key in keys], np.int32), counts)
    nothing = np.full(len(offsets), -1, np.int64)
    return Commits(
        [key.key for key in keys], np.concatenate(([0], np.cumsum(counts))), number, offsets, tombstones, times,
        nothing, nothing, queries > kernels.NOT_OURS, np.maximum(queries, -1), marked, ids,
        partitions, record_offsets, record_times,
    )  # fmt: skip
