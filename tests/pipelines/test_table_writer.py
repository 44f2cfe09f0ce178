"""The task that writes a table, without Spark: its limits, its files, and the driver's checks of its report."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.errors import LogTruncated, OffsetOutOfRange, TopicRecreated
from odradek.client.reader import PartitionReader
from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.decoders.decoder import decoder_for
from odradek.pipelines.files import table_writer
from odradek.pipelines.files.batch_rows import found_files
from odradek.pipelines.files.column_encodings import different_values
from odradek.pipelines.files.file_layouts import FolderLayout
from odradek.pipelines.files.partition_folders import by_folder
from odradek.pipelines.files.staging import FilesNotSeen
from odradek.pipelines.files.statistics import file_statistics
from odradek.pipelines.files.table_folders import TableFolder, folder_of
from odradek.pipelines.files.table_writer import OPEN_FILES, ROW_GROUP_BYTES, ROW_GROUP_ROWS, TableWriter
from odradek.pipelines.files.task_reports import FileReport, RangesNotRead, TaskReport, check_ranges
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.values.record_values import Values
from odradek.spark import piece_reader
from odradek.spark.offsets.offset_ranges import Piece, Range
from odradek.spark.options import ReadOptions, parse_options
from odradek.spark.piece_progress import PieceProgress
from odradek.spark.tasks import pack

TP = TopicPartition("t", 0)
Batches = Callable[[], Iterator[pa.RecordBatch]]


def options() -> ReadOptions:
    return parse_options({"kafka.bootstrap.servers": "x:1", "subscribe": "t"}, streaming=True)


def records(start: int, values: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.array(keys or [None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["t"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(start, start + count), pa.int64()),
        "timestamp": pa.array([10**15 + start] * count, pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Batches], None]:
    """Sets the records that a task reads in place of a topic."""

    def given(batches: Batches) -> None:
        def read(options: ReadOptions, piece: Piece, progress: PieceProgress) -> Iterator[pa.RecordBatch]:
            yield from batches()
            progress.note_read(piece.start, piece.end)

        monkeypatch.setattr(table_writer, "read_piece", read)

    return given


def write(place: Path, partition_by: tuple[str, ...] = (), end: int = 10) -> TaskReport:
    writer = TableWriter(
        options(), decoder_for(Values()), folder_of(LocalLocation(place)), "batch-000000-ab", FolderLayout(partition_by)
    )
    sent: TableWriter = pickle.loads(pickle.dumps(writer))
    return sent.write([Piece(TP, 0, end, None)])


def row_groups(path: Path) -> list[tuple[int, int]]:
    footer = pq.read_metadata(path)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return [(group.num_rows, group.total_byte_size) for group in groups]


def test_row_groups_and_memory_are_limited(reads: Any, tmp_path: Path) -> None:
    """The task reads 1.2 GB of values. The writer uses less memory than four row groups."""
    large = 1000

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(600):
            yield records(number * 200, [os.urandom(16) * 625 for _ in range(200)])

    reads(batches)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        report = write(tmp_path / "t")
    finally:
        pa.set_memory_pool(before)
    assert report.rows == 120_000
    assert pool.max_memory() < 4 * ROW_GROUP_BYTES
    sizes = [group for file in report.files for group in row_groups(tmp_path / "t" / file.name)]
    assert len(sizes) >= 1_200_000_000 // ROW_GROUP_BYTES
    assert max(rows for rows, _ in sizes) <= ROW_GROUP_BYTES // (10 * large)


def test_a_row_group_has_a_million_rows_at_most(reads: Any, tmp_path: Path) -> None:
    empty: list[bytes | None] = [b""] * 350_000
    reads(lambda: (records(number * 350_000, empty) for number in range(6)))
    report = write(tmp_path / "t")
    (file,) = report.files
    rows = [count for count, _ in row_groups(tmp_path / "t" / file.name)]
    assert sum(rows) == 2_100_000
    assert max(rows) <= ROW_GROUP_ROWS


def test_at_most_64_files_are_open(reads: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches have rows for 300 folders each. The writer closes the file that was written least recently."""
    keys: list[bytes | None] = [b"%d" % (n % 300) for n in range(900)]
    reads(lambda: iter([records(0, [b"v"] * 900, keys), records(900, [b"w"] * 900, keys)]))
    opened, most = [0], [0]
    new, close = table_writer._File.__init__, table_writer._File.close

    def counted(self: Any, *arguments: Any) -> None:
        opened[0] += 1
        most[0] = max(most[0], opened[0])
        new(self, *arguments)

    def counted_close(self: Any) -> FileReport:
        opened[0] -= 1
        return close(self)

    monkeypatch.setattr(table_writer._File, "__init__", counted)
    monkeypatch.setattr(table_writer._File, "close", counted_close)
    report = write(tmp_path / "t", ("key",))
    assert (opened[0], most[0]) == (0, OPEN_FILES)
    assert report.rows == 1800
    found = ds.dataset(tmp_path / "t", partitioning="hive").to_table()
    assert sorted(zip(found["key"].to_pylist(), found["offset"].to_pylist(), strict=True)) == sorted(
        (n % 300, n) for n in range(1800)
    )


def test_two_attempts_write_different_files_and_a_failed_attempt_leaves_none(reads: Any, tmp_path: Path) -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        keys: list[bytes | None] = [b"%d" % n for n in range(100)]
        yield records(0, [b"x" * 1000] * 100, keys)
        raise StorageError("the broker is unreachable")

    reads(fails)
    with pytest.raises(StorageError, match="is unreachable"):
        write(tmp_path / "t", ("key",))
    assert list((tmp_path / "t").glob("**/*.parquet")) == []
    reads(lambda: iter([records(0, [b"x"] * 10)]))
    names = [write(tmp_path / "t").files[0].name for _ in range(2)]
    assert len(set(names)) == 2
    assert all(name.startswith("batch-000000-ab-") for name in names)


def test_the_error_of_a_full_disk_names_the_host(reads: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: TableFolder, name: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableFolder, "create", full)
    reads(lambda: iter([records(0, [b"x"])]))
    with pytest.raises(StorageError, match=f"{tmp_path}/t cannot be written from {table_writer.host()}.*No space left"):
        write(tmp_path / "t")


def test_repeated_values_are_written_with_a_dictionary(reads: Any, tmp_path: Path) -> None:
    """The first file has 10,000 different values in 200,000 rows, the second 200,000 different values."""
    some = [os.urandom(100) for _ in range(10_000)]
    sizes = []
    for pick in (lambda n: some[(n * 7919) % 10_000], lambda n: os.urandom(100)):
        reads(lambda pick=pick: iter([records(0, [pick(n) for n in range(200_000)])]))
        (file,) = write(tmp_path / "t").files
        sizes.append(file.size)
    assert sizes[0] < 2_000_000
    assert sizes[1] > 20_000_000
    # Offsets and times are stored as differences.
    assert sizes[1] < 20_900_000


@given(st.integers(1, 100_000), st.integers(100, 20_000))
def test_the_number_of_different_values_is_estimated(different: int, rows: int) -> None:
    from math import expm1

    seen = round(different * -expm1(-rows / different))
    found = different_values(rows, min(seen, rows))
    if seen < rows * 0.95:
        assert found == pytest.approx(different, rel=0.2, abs=2)


def test_folders_have_sparks_names() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "k": pa.array([b"a/b %41:\xc3\xbc", None, b"", b"a/b %41:\xc3\xbc"], pa.binary()),
            "at": pa.array([0, 1500, 0, 0], pa.timestamp("us", "UTC")),
            "x": [1, 2, 3, 4],
        }
    )
    found = {folder: part.column("x").to_pylist() for folder, part in by_folder(rows, ("k", "at"))}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert found == {
        "k=a%2Fb %2541%3Aü/at=1970-01-01 00%3A00%3A00": [1, 4],
        f"k={null}/at=1970-01-01 00%3A00%3A00.0015": [2],
        f"k={null}/at=1970-01-01 00%3A00%3A00": [3],
    }
    assert [folder for folder, _ in by_folder(rows.slice(0, 0), ())] == []


def test_folders_of_times_beyond_pythons_range_have_sparks_names() -> None:
    """Spark writes years with at least four digits, and a sign before longer years."""
    year_10_000, year_987 = 253_402_300_800, -31_020_451_200
    times = pa.array([year_10_000 * 1_000_000, year_987 * 1_000_000 + 120_000, None], pa.timestamp("us", "UTC"))
    days = pa.array([year_10_000 // 86_400, year_987 // 86_400, None], pa.date32())
    rows = pa.RecordBatch.from_pydict({"at": times, "day": days, "x": [1, 2, 3]})
    assert [folder for folder, _ in by_folder(rows, ("day",))] == [
        "day=+10000-01-01", "day=0987-01-01", "day=__HIVE_DEFAULT_PARTITION__"
    ]  # fmt: skip
    found = {folder for folder, _ in by_folder(rows, ("at",))}
    assert found == {"at=+10000-01-01 00%3A00%3A00", "at=0987-01-01 00%3A00%3A00.12", "at=__HIVE_DEFAULT_PARTITION__"}


def test_columns_that_cannot_be_partition_columns_are_refused(tmp_path: Path, reads: Any) -> None:
    reads(lambda: iter([]))
    with pytest.raises(ConfigError, match="partition_by nope: the table's columns are topic"):
        write(tmp_path, ("nope",))


# --- the driver's checks --------------------------------------------------------------------------------------------


def test_the_driver_names_a_file_that_it_cannot_find(reads: Any, tmp_path: Path) -> None:
    reads(lambda: iter([records(0, [b"x"] * 10)]))
    report = write(tmp_path / "t")
    folder = folder_of(LocalLocation(tmp_path / "t"))
    (found,) = found_files(folder, [report])
    assert (found.rows, found.bad) == (10, 0)
    (file,) = report.files
    path = tmp_path / "t" / file.name
    whole = path.read_bytes()

    def refused(says: str) -> None:
        with pytest.raises(FilesNotSeen, match=says) as raised:
            found_files(folder, [report])
        assert str(path) in str(raised.value)
        assert report.host in str(raised.value)
        assert "shared file system" in str(raised.value)
        assert "\n" not in str(raised.value)

    path.write_bytes(whole[:-9])
    refused("wrote 10 rows in")
    pq.write_table(pa.table({"x": [1] * 9}), path)
    refused("the driver finds 9 rows in")
    path.unlink()
    refused("the driver finds nothing there")


def _report(*ranges: Range) -> TaskReport:
    return TaskReport("h", 0, ranges, (), 0, None, 0.0)


def test_the_driver_adds_only_planned_ranges_and_each_once() -> None:
    planned = [Range(TP, 0, 100), Range(TopicPartition("t", 1), 5, 9)]
    rest = _report(Range(TopicPartition("t", 1), 5, 9))
    check_ranges(planned, [_report(Range(TP, 60, 100)), _report(Range(TP, 0, 60)), rest])
    for wrong, says in (
        ([_report(Range(TP, 0, 60)), rest], "t-0, offsets 60 to 99, was planned but not read"),
        ([_report(Range(TP, 0, 100))], "t-1, offsets 5 to 8, was planned but not read"),
        ([_report(Range(TP, 0, 100)), _report(Range(TP, 0, 60)), rest], "was read more often than planned"),
        ([_report(Range(TP, 0, 101)), rest], "t-0, offset 100, was read more often than planned"),
        ([_report(Range(TP, 0, 60)), _report(Range(TP, 50, 90)), rest], "offsets 90 to 99, was planned"),
    ):
        with pytest.raises(RangesNotRead, match=says):
            check_ranges(planned, wrong)


Read = tuple[int, int, Exception | None]


def read_by(
    monkeypatch: pytest.MonkeyPatch, place: Path, reads: list[Read], *, fail: bool = False, end: int = 100
) -> TaskReport:
    """The report of a task whose reader follows ``reads``: the start and end of each read, and its error or None."""
    script = iter(reads)

    def read(reader: PartitionReader, start: int, end: int, **given: Any) -> Iterator[Any]:
        low, high, error = next(script)
        assert start == low
        if high > low:
            yield records(low, [b"x"] * (high - low))
            given["passed"](low, high)
        if error is not None:
            raise error

    monkeypatch.setattr(PartitionReader, "read", read)
    monkeypatch.setattr(piece_reader, "_drop_former_topic", lambda *given: None)
    monkeypatch.setattr(piece_reader, "_loss_message", lambda *given: "gone")
    given = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "failOnDataLoss": str(fail).lower()}
    writer = TableWriter(
        parse_options(given, streaming=True), decoder_for(Values()), folder_of(LocalLocation(place)), "batch-000000-ab"
    )
    return writer.write([Piece(TP, 0, end, None)])


def test_a_reader_that_ends_too_early_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The task reports the end that its reader reached, not the requested end."""
    report = read_by(monkeypatch, tmp_path / "t", [(0, 60, None)])
    assert (report.rows, report.ranges) == (60, (Range(TP, 0, 60),))
    with pytest.raises(RangesNotRead, match="t-0, offsets 60 to 99, was planned but not read"):
        check_ranges([Range(TP, 0, 100)], [report])


@pytest.mark.parametrize(
    ("reads", "read", "lost"),
    [
        ([(0, 30, OffsetOutOfRange(TP, 30, 50, 200)), (50, 100, None)], [(0, 30), (50, 100)], [(30, 50)]),
        ([(0, 30, OffsetOutOfRange(TP, 30, 500, 600))], [(0, 30)], [(30, 100)]),
        ([(0, 30, OffsetOutOfRange(TP, 30, 0, 30))], [(0, 30)], [(30, 100)]),
        ([(0, 30, LogTruncated(TP, 30, 70)), (30, 70, None)], [(0, 70)], [(70, 100)]),
        ([(0, 30, LogTruncated(TP, 30, 20))], [(0, 30)], [(30, 100)]),
        ([(0, 30, TopicRecreated("t was deleted"))], [(0, 30)], [(30, 100)]),
    ],
)
def test_deleted_records_are_reported_as_lost(
    reads: list[Read], read: list[tuple[int, int]], lost: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    report = read_by(monkeypatch, tmp_path / "t", reads)
    assert [item[1:] for item in report.ranges] == read
    assert [item[1:] for item in report.lost] == lost
    assert report.rows == sum(end - start for start, end in read)
    check_ranges([Range(TP, 0, 100)], [report])


# --- tasks ----------------------------------------------------------------------------------------------------------

MIB = 1 << 20


def test_small_ranges_share_a_task_and_large_ones_are_split() -> None:
    small = [Range(TopicPartition("t", number), 0, 10) for number in range(100)]
    assert pack(small, {}, 256 * MIB, slots=8) == [small]
    big = [Range(TP, 0, 2_000_000)]
    tasks = pack(big, {TP: 1024.0 * 1024 / 1000}, 256 * MIB, slots=2)
    assert len(tasks) >= 8
    assert len(pack(big, {TP: 1000.0}, 10 << 40, slots=2, most=1)) == 1
    # A range without a sample is assumed to have the largest known records.
    two = [Range(TP, 0, 1000), Range(TopicPartition("t", 1), 0, 1000)]
    assert len(pack(two, {TP: float(MIB)}, 250 * MIB)) == 8


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**7)), min_size=1, max_size=30),
    st.dictionaries(st.integers(0, 29), st.floats(1, 2000), max_size=30),
    st.integers(1, 512),
    st.integers(1, 50),
    st.none() | st.integers(1, 20),
)
def test_every_offset_is_in_one_task(
    ranges: list[tuple[int, int]], sizes: dict[int, float], task_mib: int, slots: int, most: int | None
) -> None:
    wanted = [Range(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(ranges)]
    known = {TopicPartition("t", number): size for number, size in sizes.items()}
    tasks = pack(wanted, known, task_mib * MIB, slots, most)
    check_ranges(wanted, [_report(*task) for task in tasks])
    assert all(tasks)
    largest = max(known.values(), default=1024.0)

    def bytes_of(task: list[Range]) -> float:
        return sum(item.size * known.get(item.partition, largest) for item in task)

    assert most is None or len(tasks) <= most
    if most is None:
        assert max(map(bytes_of, tasks)) <= task_mib * MIB * 1.2 + 2000


# --- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_have_deltas_format(tmp_path: Path) -> None:
    inner = pa.StructArray.from_arrays([pa.array([1, None, 3])], ["id"])
    rows = pa.table(
        {
            "n": pa.array([3, None, 1], pa.int64()),
            "s": ["b", "a" * 40, None],
            "at": pa.array([1_500, 999, None], pa.timestamp("us", "UTC")),
            "b": pa.array([b"x", None, b"y"], pa.binary()),
            "f": [1.5, float("nan"), 2.0],
            "v": inner,
            "l": [[1], None, [2]],
        }
    )
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=2, store_schema=False)
    found = file_statistics(pq.read_metadata(tmp_path / "x.parquet"))
    assert found["nullCount"] == {"n": 1, "s": 1, "at": 1, "b": 1, "f": 0, "v": {"id": 1}}
    assert found["minValues"]["n"] == 1
    assert found["minValues"]["s"] == "a" * 32
    assert found["maxValues"]["s"] == "b"
    assert found["minValues"]["at"] == "1970-01-01T00:00:00.000Z"
    assert found["maxValues"]["at"] == "1970-01-01T00:00:00.002Z"
    assert found["maxValues"]["v"] == {"id": 3}
    assert not {"b", "l"} & (found["minValues"].keys() | found["nullCount"].keys() & {"l"})


_YEAR_1_US, _YEAR_9999_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([_YEAR_1_US, 0], ("0001-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z")),
        ([_YEAR_1_US + 1, 0], ("0001-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z")),
        ([0, _YEAR_9999_US], (None, None)),
        ([0, _YEAR_9999_US - 999], ("1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z")),
        ([0, _YEAR_9999_US + 1], (None, None)),
        ([_YEAR_1_US - 1, 0], (None, None)),
        ([-(2**63), 2**63 - 1], (None, None)),
    ],
)
def test_statistics_of_times_beyond_pythons_range_have_deltas_format(
    values: list[int], bounds: tuple[str | None, str | None], tmp_path: Path
) -> None:
    """A producer may send any value as the time of a record."""
    rows = pa.table({"at": pa.array(values, pa.timestamp("us", "UTC")), "n": [1, 2]})
    pq.write_table(rows, tmp_path / "x.parquet", store_schema=False)
    found = file_statistics(pq.read_metadata(tmp_path / "x.parquet"))
    assert (found["minValues"].get("at"), found["maxValues"].get("at")) == bounds
    assert (found["minValues"]["n"], found["nullCount"]["at"]) == (1, 0)


def test_dates_beyond_pythons_range_have_no_statistics(tmp_path: Path) -> None:
    rows = pa.table({"day": pa.array([0, 2_932_897], pa.date32()), "n": [1, 2]})
    pq.write_table(rows, tmp_path / "x.parquet", store_schema=False)
    found = file_statistics(pq.read_metadata(tmp_path / "x.parquet"))
    assert found["minValues"] == {"n": 1}
