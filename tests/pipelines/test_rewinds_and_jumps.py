"""Rewinds and jumps in random commit histories are those of a simple model of the rules."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import GroupMember, GroupMetadata, OffsetCommitValue
from odradek.history.findings import FindingRules, gather
from odradek.history.log_ends import Logs
from odradek.history.records.decode import decode_batch
from odradek.history.records.journal import Journal
from odradek.history.rewinds import READER_RUN, moves

Step = tuple[str, int, int]
"""The events: commit (partition, offset), tombstone (partition, –) or members (number, –)."""
Move = tuple[str, int, int, int, str]

partitions = st.integers(0, 1)
steps = st.lists(
    st.tuples(st.just("commit"), partitions, st.integers(0, 6))
    | st.tuples(st.just("commit"), partitions, st.integers(0, 6))
    | st.tuples(st.just("tombstone"), partitions, st.just(0))
    | st.tuples(st.just("members"), st.integers(0, 2), st.just(0)),
    max_size=40,
)


def found(history: list[Step]) -> list[Move]:
    """The moves that the analysis finds in the encoded records."""
    keys, values = [], []
    for at, (what, first, second) in enumerate(history):
        if what == "members":
            members = tuple(GroupMember(f"m{n}", None, "c", "h", 1, 1, b"", b"") for n in range(first))
            keys.append(records.group_key("g"))
            values.append(records.group_value(GroupMetadata("consumer", at, "range", None, at, members)))
        else:
            keys.append(records.offset_key("g", "t", first))
            commit = OffsetCommitValue(second, -1, "", at * 10_000)
            values.append(records.offset_value(commit) if what == "commit" else None)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([0] * len(keys), pa.int32()),
            "offset": pa.array(range(len(keys)), pa.int64()),
            "timestamp": pa.array([n * 10_000_000 for n in range(len(keys))], pa.timestamp("us", tz="UTC")),
        }
    )
    journal = Journal()
    for start in range(0, len(keys), 7):
        journal.add(decode_batch(batch.slice(start, 7)))
    evidence = gather(journal, Logs(0, np.empty(0, np.int64)), lambda records: {}, FindingRules())
    return sorted(
        (one.kind, one.partition or 0, one.from_offset or 0, one.to_offset or 0, one.cause or "")
        for one in moves(evidence)
    )


class Entry:
    """A commit, or a tombstone (offset None). ``period`` is the number of changes of the members before the entry."""

    def __init__(self, offset: int | None, period: int, from_outside: bool, members: int) -> None:
        self.offset, self.period, self.from_outside = offset, period, from_outside and offset is not None
        self.reader = "reader" if members > 0 else "unknown"
        self.is_reset = False

    def goes_with(self, other: Entry) -> bool:
        return other.from_outside and other.period == self.period


def entries(history: list[Step], partition: int) -> list[Entry]:
    listed, members, had_members, period = [], -1, False, 0
    for what, first, second in history:
        if what == "members":
            members, had_members, period = first, had_members or first > 0, period + 1
        elif first == partition:
            listed.append(Entry(second if what == "commit" else None, period, had_members and members == 0, members))
    for at, entry in enumerate(listed):
        if entry.from_outside:
            first = last = at
            while first and entry.goes_with(listed[first - 1]):
                first -= 1
            while last + 1 < len(listed) and entry.goes_with(listed[last + 1]):
                last += 1
            entry.is_reset = at == first or last - first < READER_RUN
    return listed


def modelled(history: list[Step]) -> list[Move]:
    model_moves: list[Move] = []
    for partition in (0, 1):
        listed = entries(history, partition)
        before: int | None = None
        deleted = False
        for at, entry in enumerate(listed):
            if entry.offset is None:
                deleted = before is not None
                continue
            if entry.is_reset and at + 1 < len(listed) and listed[at + 1].is_reset:
                continue  # consecutive resets are one move
            cause = "reset" if entry.is_reset else "restarted without an offset" if deleted else entry.reader
            if before is not None and entry.offset < before:
                model_moves.append(("rewind", partition, entry.offset, before, cause))
            elif before is not None and entry.offset > before and cause not in ("reader", "unknown"):
                model_moves.append(("jump", partition, before, entry.offset, cause))
            before, deleted = entry.offset, False
    return sorted(model_moves)


@pytest.mark.claim(58, part=True)
@given(steps)
def test_moves_equal_those_of_the_model(history: list[Step]) -> None:
    """The analysis reports every move back of any client. It reports a move forward only if no member can have read the
    records between. Consecutive resets count as one move."""
    assert found(history) == modelled(history)
