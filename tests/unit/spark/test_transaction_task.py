"""A micro-batch's tasks: which attempt may send, and when the driver may commit. Without Spark's processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from odradek.spark.writes import transaction_task
from odradek.spark.writes.transaction_task import UnknownTask, choose_partitions, stage_attempt, write_in_transaction
from odradek.spark.writes.write_options import parse_write_options
from odradek.spark.writes.write_reports import UNKNOWN_ATTEMPT, WriteReport, is_each_row_written_once

OPTIONS = parse_write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
SCHEMA = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
NAME = "Thread[#9,Executor task launch worker for task 1.{attempt} in stage 7.{stage} (TID 12),5,main]"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The values that a task would have sent."""
    values: list[Any] = []

    def send(options: Any, shared: Any, batches: Any) -> int:
        before = len(values)
        for batch in batches:
            values.extend(batch.column("value").to_pylist())
        return len(values) - before

    monkeypatch.setattr(transaction_task, "_send", send)
    return values


def run_as(monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    numbers = {"partitionId": 1, "stageId": 7, "attemptNumber": attempt, "taskAttemptId": 12}
    context = SimpleNamespace(**{name: lambda number=number: number for name, number in numbers.items()})
    monkeypatch.setattr(transaction_task, "_context", lambda: context)


def written(*batches: pa.RecordBatch) -> WriteReport:
    (row,) = write_in_transaction(OPTIONS, None, iter(batches))  # the fixture sends nothing
    return WriteReport(**row.to_pylist()[0])


def rows(name: str | None, *places: int) -> pa.RecordBatch:
    columns = {"value": [None if place < 0 else b"%d" % place for place in places], "partition": list(places)}
    threads = [name, *[None] * (len(places) - 1)]
    schema = SCHEMA.append(pa.field("odradek_thread", pa.string()))
    return pa.RecordBatch.from_pydict(columns | {"odradek_thread": threads}, schema=schema)


@pytest.mark.parametrize(("attempt", "stage", "values"), [(0, 0, [b"4", b"1"]), (1, 0, []), (0, 1, []), (2, 3, [])])
def test_only_the_first_attempt_of_a_task_in_the_first_attempt_of_its_stage_sends(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], attempt: int, stage: int, values: list[bytes]
) -> None:
    run_as(monkeypatch, attempt)
    nothing = rows("", -2).slice(0, 0)
    report = written(nothing, rows(NAME.format(attempt=attempt, stage=stage), -2, 4), rows(None, 1, -2))
    assert sent == values
    assert report == WriteReport(1, 7, stage, attempt, len(values))


def test_a_task_that_cannot_tell_its_attempt_sends_nothing(monkeypatch: pytest.MonkeyPatch, sent: list[Any]) -> None:
    run_as(monkeypatch, 0)
    with pytest.raises(UnknownTask, match="does not name the task"):
        written(rows("main", 4))
    assert not sent
    assert written() == WriteReport(1, 7, UNKNOWN_ATTEMPT, 0, 0)


def test_a_name_of_another_task_is_not_accepted() -> None:
    name = NAME.format(attempt=0, stage=2)
    assert stage_attempt(name, 7, 12) == 2
    for stage, attempt_id in ((6, 12), (7, 13)):
        with pytest.raises(UnknownTask):
            stage_attempt(name, stage, attempt_id)
    with pytest.raises(UnknownTask):
        stage_attempt(None, 7, 12)


@pytest.mark.parametrize("given", [[], [[5, 3]], [[], [0], [2, 2]]])
def test_each_writing_task_gets_a_task_row_first_and_every_row_keeps_its_partition(
    monkeypatch: pytest.MonkeyPatch, given: list[list[int]]
) -> None:
    run_as(monkeypatch, 0)
    batches = [rows(None, *some).select(["value", "partition"]) if some else empty() for some in given]
    placed = pa.Table.from_batches(choose_partitions(6, 2, SCHEMA, iter(batches)))
    assert placed.schema == SCHEMA
    assert placed.column("partition").to_pylist() == [-1, -2, *(place for some in given for place in some)]
    assert placed.column("value").null_count == 2


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=SCHEMA)


FIRST = [WriteReport(task, 7, 0, 0, 5) for task in range(3)]


@pytest.mark.parametrize(
    ("reports", "is_once"),
    [
        (FIRST, True),
        (FIRST[::-1], True),
        ([WriteReport(task, 7, UNKNOWN_ATTEMPT, 0, 0) for task in range(3)], True),
        ([], True),
        (FIRST[:2], False),
        ([*FIRST, FIRST[0]], False),
        ([FIRST[0], FIRST[0], FIRST[2]], False),
        ([*FIRST[:2], FIRST[2]._replace(attempt=1, rows=0)], False),
        ([*FIRST[:2], FIRST[2]._replace(stage_attempt=1, rows=0)], False),
        ([*FIRST[:2], FIRST[2]._replace(stage_attempt=UNKNOWN_ATTEMPT, rows=0)], False),
        ([*FIRST[:2], FIRST[2]._replace(stage=8)], False),
    ],
)
def test_the_driver_commits_only_if_the_only_sender_of_each_task_reports(
    reports: list[WriteReport], is_once: bool
) -> None:
    assert is_each_row_written_once(reports, 3) is is_once
