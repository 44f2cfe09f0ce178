"""Linearizability of a register: whether writes and reads of one value can have an order that fits to their times.

Each operation must take effect at one moment between its begin and its end. A write without an answer takes effect at
any later moment, or never. A register with equal values has no polynomial check in general (Gibbons and Korach, Testing
shared memories, 1997), so this is a search. It follows the events in time and keeps all *states* that the register
may be in, and takes an operation only when it has to: at its end (Lowe, Testing for linearizability, 2017). Three rules
keep the states few:

* A write that overlaps a later effect of another write may have happened just before it, unseen: it is *free*. So a
  state says only when a write last became visible. A write of ``unseen_from`` overlaps effects from then on.
* A read takes effect as soon as the register has its value. It never helps to wait.
* A state that another one covers is dropped: with the same value, a later last write, more reads done, fewer
  writes used.

A write without an answer whose value no later read has is no operation: it may never have happened.

With many clients and many writes without an answer, the states may still be too many. So a first pass keeps only a few
for each value. If one is left at the end, there is an order. If none is left at some operation, a part of the
operations before it, which is small enough for a pass that keeps all states, has to prove the contradiction. Without
such a part, the next pass keeps more states; the last one keeps all.

If no two writes have one value, ``value_zones`` decides in place of the search.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import NamedTuple

from odradek.consistency.value_zones import Value, have_order


@dataclass(frozen=True, slots=True)
class RegisterOperation:
    """``end``: infinite for a write without an answer. ``key``: what the caller knows it by. ``unseen_from``: a write
    is never visible if another one takes effect between this moment and its end; None: its start."""

    is_write: bool
    value: Value
    start: float
    end: float
    key: Hashable = None
    unseen_from: float | None = None

    @property
    def earliest(self) -> float:
        """From when on it may have happened unseen."""
        return self.start if self.unseen_from is None else self.unseen_from


class _State(NamedTuple):
    """``visible_at``: the event at which a write last became visible. ``used``: open writes that were visible.
    ``done``: open reads that have their value."""

    value: Value
    visible_at: int
    used: frozenset[int]
    done: frozenset[int]

    def covers(self, other: _State) -> bool:
        return self.visible_at >= other.visible_at and self.used <= other.used and self.done >= other.done


_NOTHING: frozenset[int] = frozenset()
_UNSEEN, _BEGIN, _END = range(3)
"""The events of an operation, in the order that they have at one time."""


WIDTHS = (2, 16, 128, 1_024, None)
"""How many states with one value the passes keep. None: all."""
LEAST_OF_PART = 64
"""So many states with one value at least keeps a pass over a part."""
MOST_BEFORE = 4
"""A pass that keeps a few states tries all choices among so many writes, and some choices among more."""


class _Search:
    """One pass over the events of a register. ``width``: how many states with one value it keeps; None: all.

    ``is_complete``: no state was left out that another one does not cover."""

    def __init__(self, operations: Sequence[RegisterOperation], initial: Value, width: int | None) -> None:
        self._operations, self._width = operations, width
        self.is_complete = True
        self._last_read: dict[Value, float] = {}
        for one in operations:
            if not one.is_write:
                self._last_read[one.value] = max(one.end, self._last_read.get(one.value, -inf))
        self._states = [_State(initial, -1, _NOTHING, _NOTHING)]
        self._writes: defaultdict[Value, list[int]] = defaultdict(list)  # open ones, the one that ends first first
        self._reads: defaultdict[Value, set[int]] = defaultdict(set)  # open ones
        self._begun: dict[int, int] = {}

    def run(self) -> int | None:
        """Returns the operation at whose end no state is left; None if the operations are linearizable."""
        events: list[tuple[float, int, int]] = []
        for index, one in enumerate(self._operations):
            if one.end == inf and self._last_read.get(one.value, -inf) < one.start:
                continue
            events.append((one.start, _BEGIN, index))
            if one.earliest < one.start:
                events.append((one.earliest, _UNSEEN, index))
            if one.end < inf:
                events.append((one.end, _END, index))
        for now, (_, event, index) in enumerate(sorted(events)):
            if event != _END:
                self._begun.setdefault(index, now)
            if event == _BEGIN:
                self._begin(index)
            if event != _END:
                continue
            self._finish(index, now)
            if not self._states:
                return index
        return None

    def _begin(self, index: int) -> None:
        one = self._operations[index]
        if one.is_write:
            insort(self._writes[one.value], index, key=lambda other: self._operations[other].end)
            return
        self._reads[one.value].add(index)
        self._states = [
            state._replace(done=state.done | {index}) if state.value == one.value else state for state in self._states
        ]

    def _finish(self, index: int, now: int) -> None:
        one = self._operations[index]
        found: list[_State] = []
        for state in self._states:
            if one.is_write:
                found += self._after_write(state, index, now)
            elif index in state.done:
                found.append(state)
            elif (source := self._source(one.value, state.used)) is not None:
                found += self._show(state, source, now)
        self._close(one, index)
        ended = frozenset((index, *(self._unread(one.value) if one.end == self._last_read.get(one.value) else ())))
        self._states = self._reduced(
            state._replace(used=state.used - ended, done=state.done - ended) for state in found
        )

    def _unread(self, value: Value) -> list[int]:
        """Closes the writes of a value without an answer: no later read has it. Returns them."""
        unread = [index for index in self._writes.get(value, ()) if self._operations[index].end == inf]
        for index in unread:
            self._close(self._operations[index], index)
        return unread

    def _reduced(self, states: Iterable[_State]) -> list[_State]:
        found: list[_State] = []
        for alike in _without_covered(states):
            if self._width is not None and len(alike) > self._width:
                self.is_complete = False
                alike.sort(key=lambda one: (len(one.used), -len(one.done), -one.visible_at))
            found += alike[: self._width]
        return found

    def _close(self, one: RegisterOperation, index: int) -> None:
        open_ones = self._writes if one.is_write else self._reads
        open_ones[one.value].remove(index)
        if not open_ones[one.value]:
            del open_ones[one.value]

    def _after_write(self, state: _State, index: int, now: int) -> list[_State]:
        if index in state.used:
            return [state]
        is_free = self._begun[index] < state.visible_at
        return [*([state] if is_free else ()), *self._show(state, index, now)]

    def _source(self, value: Value, used: frozenset[int]) -> int | None:
        """Returns the open write of this value that ends first and was not visible yet."""
        return next((index for index in self._writes.get(value, ()) if index not in used), None)

    def _show(self, state: _State, write: int, now: int) -> list[_State]:
        """Returns the states after a write became visible. Just before it, other open writes may have been visible to
        open reads."""
        value = self._operations[write].value
        before: list[tuple[int, set[int]]] = []
        for other, reads in self._reads.items():
            waiting = reads - state.done if other != value else None
            if waiting and (source := self._source(other, state.used)) is not None:
                before.append((source, waiting))
        found = []
        for chosen in self._choices(len(before)):
            used, done = state.used | {write}, state.done | self._reads.get(value, set())
            for (source, waiting), is_chosen in zip(before, chosen, strict=True):
                if is_chosen:
                    used, done = used | {source}, done | waiting
            found.append(_State(value, now, used, done))
        return found

    def _choices(self, count: int) -> Iterable[Sequence[bool]]:
        if self._width is None or count <= MOST_BEFORE:
            return product((True, False), repeat=count)
        self.is_complete = False
        single = [[at == one for at in range(count)] for one in range(count)]
        return [[True] * count, [False] * count, *single, *([not is_one for is_one in one] for one in single)]


def _without_covered(states: Iterable[_State]) -> Iterable[list[_State]]:
    """Returns the states with each value."""
    kept: dict[Value, list[_State]] = {}
    for state in states:
        alike = kept.setdefault(state.value, [])
        if not any(other.covers(state) for other in alike):
            kept[state.value] = [*(other for other in alike if not state.covers(other)), state]
    return kept.values()


def first_contradiction(operations: Sequence[RegisterOperation], initial: Value = None) -> int | None:
    """Returns the index of the first operation whose end no order explains; None if the register is linearizable."""
    return _Search(operations, initial, None).run()


def smallest_contradiction(operations: Sequence[RegisterOperation], initial: Value = None) -> list[RegisterOperation]:
    """Returns a part of operations that are not linearizable, from which nothing can be left out; in order of begin.

    A read stays together with all writes that may be its source. So the part alone proves the contradiction."""
    if (is_right := have_order(operations, initial)) is not None:
        if is_right:
            return []
        ended = sorted((one for one in operations if one.end < inf), key=lambda one: one.end)
        at = bisect_left(ended, 1, key=lambda one: not have_order(_until(one, operations), initial))
        return _smallest_until(ended[at], operations, initial, None)
    for width in WIDTHS:
        failed = _Search(operations, initial, width).run()
        if failed is None:
            return []
        if found := _smallest_until(operations[failed], operations, initial, width):
            return found
    raise AssertionError(f"no part proves a contradiction of {len(operations)} operations")


def _until(last: RegisterOperation, operations: Iterable[RegisterOperation]) -> list[RegisterOperation]:
    """Returns what had happened when an operation ended. A write that goes on may still take effect at any time."""
    return [
        replace(one, end=inf) if one.end > last.end else one
        for one in operations
        if one.start <= last.end and (one.is_write or one.end <= last.end)
    ]


def _smallest_until(
    last: RegisterOperation, operations: Sequence[RegisterOperation], initial: Value, width: int | None
) -> list[RegisterOperation]:
    """Returns a part that proves that there is no order until the end of an operation; nothing if none was found."""
    before = _until(last, operations)
    sources: defaultdict[Value, list[RegisterOperation]] = defaultdict(list)
    for one in before:
        if one.is_write:
            sources[one.value].append(one)

    def part_of(kept: Iterable[RegisterOperation]) -> list[RegisterOperation]:
        """Adds all possible sources of the reads: a write after which another one came before the read is none."""
        chosen = dict.fromkeys(kept)
        writes = [one for one in chosen if one.is_write]
        for read in [one for one in chosen if not one.is_write]:
            since = max((one.earliest for one in writes if one.end < read.start), default=-inf)
            chosen |= dict.fromkeys(one for one in sources[read.value] if one.start <= read.end and one.end >= since)
        return sorted(chosen, key=lambda one: (one.start, one.end))

    def proves(kept: Sequence[RegisterOperation], limit: int) -> bool:
        part = part_of(kept)
        if len(part) >= limit:
            return False
        if (is_right := have_order(part, initial)) is not None:
            return not is_right
        search = _Search(part, initial, None if width is None else max(width, LEAST_OF_PART))
        return search.run() is not None and search.is_complete

    candidates = sorted((one for one in before if one.end < inf), key=lambda one: -one.end)
    size = 1
    while not proves(candidates[:size], len(before) + 1):
        if size >= len(candidates):
            return []
        size *= 2
    found = part_of(candidates[:size])
    while True:  # a source that was added may prove more than the read that it was added for
        ended = sorted((one for one in found if one.end < inf), key=lambda one: (one.is_write, -one.end))
        smaller = part_of(_reduced(ended, lambda rest, kept: proves(rest, len(part_of(kept)))))
        if len(smaller) >= len(found):
            return smaller
        found = smaller


def _reduced(
    kept: list[RegisterOperation], may_replace: Callable[[list[RegisterOperation], list[RegisterOperation]], bool]
) -> list[RegisterOperation]:
    """Leaves out halves, quarters, … and at last single operations, as long as the rest may replace all."""
    size = max(1, len(kept) // 2)
    while True:
        at = 0
        is_smaller = False
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if rest and may_replace(rest, kept):
                kept, is_smaller = rest, True
            else:
                at += size
        if size == 1 and not is_smaller:
            return kept
        size = max(1, size // 2)
