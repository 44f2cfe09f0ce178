"""Records that other programs write, and that no reader may stop at: each reader delivers all of them."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.odd_records import FIRST, NAMES, OFFSETS, write_odd_records

import odradek
from odradek import aio
from odradek.cli.main import run
from odradek.client import Admin, TopicPartition
from odradek.client.config import as_config
from odradek.client.reader import PartitionReader

COLUMNS = ["offset", "key", "value", "headers", "timestamp"]
Reader = Callable[[str, str], tuple[list[int], dict[int, str]]]


@pytest.fixture
def odd_topic(bootstrap: str, admin: Admin, topic: str) -> str:
    write_odd_records(bootstrap, admin, topic)
    return topic


def odd_names(rows: list[tuple[int, Any]]) -> dict[int, str]:
    """Returns the first header's name of the records whose names are no UTF-8."""
    return {offset: headers[0][0] for offset, headers in rows if offset in NAMES}


def of_table(table: pa.Table) -> tuple[list[int], dict[int, str]]:
    rows = [(one["offset"], [(h["key"], h["value"]) for h in one["headers"] or ()]) for one in table.to_pylist()]
    return [offset for offset, _ in rows], odd_names(rows)


def by_consumer(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    found: list[tuple[int, Any]] = []
    with odradek.Consumer(bootstrap, auto_offset_reset="earliest", columns=COLUMNS) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(found) < len(OFFSETS):
            found += [(one.offset, one.headers) for one in consumer.poll(10).records()]
    return [offset for offset, _ in found], odd_names(found)


def by_arrow(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    batches: list[pa.RecordBatch] = []
    with odradek.Consumer(bootstrap, auto_offset_reset="earliest", columns=COLUMNS) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while sum(one.num_rows for one in batches) < len(OFFSETS):
            batches += consumer.poll(10).record_batches()
    return of_table(pa.Table.from_batches(batches))


def by_loop(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    found: list[tuple[int, Any]] = []
    with odradek.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for one in consumer:
            found.append((one.offset, one.headers))
            if len(found) == len(OFFSETS):
                break
    return [offset for offset, _ in found], odd_names(found)


def by_asyncio(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    async def read() -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        async with aio.Consumer(bootstrap, auto_offset_reset="earliest", columns=COLUMNS) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            while len(found) < len(OFFSETS):
                found += [(one.offset, one.headers) for one in (await consumer.poll(10)).records()]
        return found

    found = asyncio.run(read())
    return [offset for offset, _ in found], odd_names(found)


def by_table(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    return of_table(odradek.read_table(topic, bootstrap, columns=COLUMNS))


def by_reader(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    reader = PartitionReader(as_config(bootstrap), TopicPartition(topic, 0), tuple(COLUMNS), "read_uncommitted")
    return of_table(pa.Table.from_batches(reader.read(0, OFFSETS[-1] + 1)))


def by_rows(bootstrap: str, topic: str) -> tuple[list[int], dict[int, str]]:
    reader = PartitionReader(as_config(bootstrap), TopicPartition(topic, 0), tuple(COLUMNS), "read_uncommitted")
    rows = [(one.offset, one.headers) for one in reader.read_rows(0, OFFSETS[-1] + 1)]
    return [offset for offset, _ in rows], odd_names(rows)


@pytest.mark.parametrize("read", [by_consumer, by_arrow, by_loop, by_asyncio, by_table, by_reader, by_rows])
def test_no_record_stops_a_client(bootstrap: str, odd_topic: str, read: Reader) -> None:
    assert read(bootstrap, odd_topic) == (OFFSETS, NAMES)


def test_no_record_stops_the_command(
    bootstrap: str, odd_topic: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    address = ["-b", bootstrap]
    assert run(["consume", odd_topic, "--json", *address]) == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["offset"] for line in lines] == OFFSETS
    assert (
        odd_names([(line["offset"], [list(one.values()) for one in line["headers"] or ()]) for line in lines]) == NAMES
    )
    assert run(["consume", odd_topic, *address]) == 0
    assert capsysbinary.readouterr().out.count(b"\n") == len(OFFSETS)
    file = tmp_path / "odd.parquet"
    assert run(["consume", odd_topic, "--output", str(file), *address]) == 0
    assert pq.read_table(file)["offset"].to_pylist() == OFFSETS
    capsysbinary.readouterr()
    assert run(["consume", odd_topic, "--tail", "1", "--json", *address]) == 0
    assert [json.loads(line)["offset"] for line in capsysbinary.readouterr().out.splitlines()] == OFFSETS[-1:]
    assert run(["consume", odd_topic, "--grep", "committed", "--json", *address]) == 0
    assert [json.loads(line)["offset"] for line in capsysbinary.readouterr().out.splitlines()] == [2]
    assert run(["consume", odd_topic, "--key", "k", "--json", *address]) == 0
    assert len(capsysbinary.readouterr().out.splitlines()) > FIRST


def test_csv_names_the_record_that_it_cannot_hold(
    bootstrap: str, odd_topic: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """CSV is text. The error has the place of the record, and a reader that begins behind it gets the next ones."""
    csv.field_size_limit(1 << 20)
    found, refused, start = [], [], 0
    while True:
        code = run(["consume", f"{odd_topic}:0", "--from", str(start), "--format", "csv", "-b", bootstrap])
        out, error = capsysbinary.readouterr()
        found += [int(row["offset"]) for row in csv.DictReader(io.StringIO(out.decode(), newline=""))]
        if code == 0:
            break
        place = re.search(rf"the (key|value) at offset (\d+) of {odd_topic}-0 is not UTF-8", error.decode())
        assert code == 1
        assert place, error
        refused.append((place[1], int(place[2])))
        start = int(place[2]) + 1
    assert refused == [("key", FIRST + 10), ("value", FIRST + 16)]
    assert sorted([*found, *(offset for _, offset in refused)]) == OFFSETS
