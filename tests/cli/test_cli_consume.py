"""``odradek consume``."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.brokers import eventually, unique
from support.forks import odradek_command

from bench import raw
from odradek import Consumer, Producer
from odradek.batches.columns.arrow_columns import schema
from odradek.batches.encode import encode_batch
from odradek.cli.main import run
from odradek.cli.records.record_lines import JSON_COLUMNS, json_lines
from odradek.client import Admin, NewTopic
from odradek.core.effects import SimpleRecord
from odradek.core.ids import TopicPartition

Publish = Callable[..., None]
Capture = pytest.CaptureFixture[str]
PLAIN = [sys.executable, "-m", "odradek.cli.main"]
"""A new Python process: its start and its end are part of the test. ``odradek_command`` forks: it skips both, and
takes a tenth of the time."""


def test_records_are_written_as_text_as_json_and_as_parquet(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["consume", filled, "-b", bootstrap]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{p}:{n}" for p in (0, 1) for n in range(10)]
    assert run(["consume", f"{filled}:1", "--from", "8", "--json", "-b", bootstrap]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in found] == [
        (1, 8, "8", "1:8"), (1, 9, "9", "1:9"),
    ]  # fmt: skip
    since = "2023-11-14T22:13:20.007"
    assert run(["consume", filled, "--from", since, "--output", str(tmp_path / "f"), "-b", bootstrap]) == 0
    assert pq.read_table(tmp_path / "f").column("offset").to_pylist() == [7, 8, 9, 7, 8, 9]
    nothing = tmp_path / "nothing"
    assert run(["consume", filled, "--from", "10", "--output", str(nothing), "-b", bootstrap]) == 0
    assert pq.read_table(nothing).num_rows == 0
    assert pq.read_schema(nothing) == pq.read_schema(tmp_path / "f")
    assert run(["consume", filled, "--from", "soon", "-b", bootstrap]) == 2


def test_the_newest_records_those_before_the_end_and_chosen_ones(bootstrap: str, filled: str, capsys: Capture) -> None:
    def lines(*options: str) -> list[str]:
        assert run(["consume", *options, "-b", bootstrap]) == 0
        return capsys.readouterr().out.splitlines()

    assert lines(filled, "--from", "-2") == ["0:8", "0:9", "1:8", "1:9"]
    assert lines(filled, "--from", "-99", "--max", "1") == ["0:0"]
    assert sorted(lines(filled, "--tail", "2")) == ["0:9", "1:9"], "both have the largest timestamp"
    assert lines(f"{filled}:1", "--tail", "3") == ["1:7", "1:8", "1:9"]
    assert lines(filled, "--tail", "1", "--grep", "^0:[12]$") == ["0:2"]
    assert lines(filled, "--key", "3") == ["0:3", "1:3"]
    assert lines(filled, "--key", "3", "--grep", "1:", "--json") == lines(
        f"{filled}:1", "--from", "3", "--max=1", "--json"
    )
    kafkas = ("--topic", filled, "--bootstrap-server", bootstrap, "--from-beginning", "--max-messages", "2")
    assert lines(*kafkas) == ["0:0", "0:1"]
    assert lines(f"{filled}:0", "--offset", "9") == ["0:9"]


def test_the_newest_records_are_followed_by_later_ones(bootstrap: str, filled: str, publish: Publish) -> None:
    command = [*odradek_command(), "consume", f"{filled}:1", "--tail", "1", "--follow", "-b", bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "1:9\n"
        publish(filled, {1: 11})
        assert process.stdout.readline() == "1:0\n"
    finally:
        process.kill()
        process.wait()


def test_an_output_has_the_format_of_its_extension(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    def written(name: str, *options: str) -> bytes:
        assert (
            run(["consume", f"{filled}:1", "--from", "8", "--output", str(tmp_path / name), *options, "-b", bootstrap])
            == 0
        )
        capsys.readouterr()
        return (tmp_path / name).read_bytes()

    assert written("a.txt") == b"1:8\n1:9\n"
    assert [json.loads(line)["key"] for line in written("a.jsonl").splitlines()] == ["8", "9"]
    rows = written("a.csv").decode().splitlines()
    assert rows[0] == "key,value,topic,partition,offset,timestamp,headers"
    assert rows[1].startswith(f"8,1:8,{filled},1,8,2023-11-14T22:13:20.008000+00:00,")
    assert written("a.parquet")[:4] == written("a.log", "--format", "parquet")[:4] == b"PAR1"
    assert written("b", "--json") == written("a.jsonl")
    assert written("c.csv", "--format", "lines") == b"1:8\n1:9\n"
    assert sorted(one.name for one in tmp_path.iterdir())[-1] == "c.csv", "no part is left"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("form", ["lines", "json", "csv", "parquet"])
def test_an_output_goes_through_fifos_devices_and_symlinks(
    bootstrap: str, filled: str, tmp_path: Path, form: str, capsys: Capture
) -> None:
    command = ["consume", filled, "--format", form, "-b", bootstrap, "--output"]
    before = os.stat("/dev/full")
    assert run([*command, "/dev/full"]) == 1
    assert (
        capsys.readouterr().err
        == "odradek: --output /dev/full: No space left on device: make room there, or write to another place\n"
    )
    assert os.stat("/dev/full") == before
    fifo, link, target = tmp_path / "fifo", tmp_path / "link", tmp_path / "target"
    os.mkfifo(fifo)
    link.symlink_to(target)
    assert run([*command, str(link)]) == 0
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE)
    assert run([*command, str(fifo)]) == 0
    found = reader.communicate(timeout=30)[0]
    assert link.is_symlink()
    if form == "lines":  # the format of a device or a pipe is that of stdout
        reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE)
        assert run(["consume", filled, "-b", bootstrap, "--output", str(fifo)]) == 0
        assert reader.communicate(timeout=30)[0] == found
    if form == "parquet":
        assert run(["consume", filled, "-b", bootstrap, "--output", str(tmp_path / "plain")]) == 0
        assert "20 records" in (said := capsys.readouterr().out.splitlines()[-1])
        assert said.endswith(f"written to {tmp_path / 'plain'} as Parquet.")
        assert pq.read_table(pa.BufferReader(found)).num_rows == pq.read_table(target).num_rows == 20
    else:
        assert found == target.read_bytes() != b""
    done = subprocess.run([*odradek_command(), *command, "/dev/stdout"], capture_output=True, check=True, timeout=60)
    assert done.stdout == found
    assert b"20 records" in done.stderr, "the message is not mixed with the data"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["t", "--tail", "3", "--group", "g"], "--tail 3 ends at the log end, and has no --group"),
        (["t", "--grep", "x", "--group", "g"], "--key and --grep leave out records, which --group would commit"),
        (["t", "--grep", "("], "--grep '(': not a regular expression"),
        (["t", "--output", "x.avro"], "--output x.avro: .avro is no format of records here: add --format"),
        (["t", "--output", "x.csv", "--json"], "--output x.csv is written as csv: omit --json"),
        (["t", "--json", "--format", "csv"], "--json and --format csv: give one of them"),
        (["t", "--format", "parquet"], "--format parquet: give --output FILE"),
        (["t", "--from-beginning", "--from", "5"], "--from-beginning and --from 5: give one of them"),
        (["t", "--topic", "u"], "topic t and --topic u: give one topic"),
        ([], "missing argument 'TOPIC[:0,1]'"),
        (["t", "--group", ""], "--group: a group's name cannot be empty"),
        (["t", "--from", "-9223372036854775808"], "a number of records is below 2**63"),
    ],
    ids=str,
)
def test_contradictions_are_refused_before_a_connection(options: list[str], message: str, capsys: Capture) -> None:
    assert run(["consume", *options, "-b", "127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_an_unknown_topic_suggests_a_similar_one(bootstrap: str, filled: str, capsys: Capture) -> None:
    assert run(["consume", filled[:-1], "-b", bootstrap]) == 2
    assert capsys.readouterr().err.endswith(f"unknown topic {filled[:-1]} (did you mean {filled}?)\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_values_that_are_not_text_are_written_as_bytes(
    bootstrap: str, admin: Admin, topic: str, capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap) as producer:
        producer.send_batch(topic, pa.record_batch({"value": [b"\xff\xfe", "é".encode(), b"", None, b"\xe2\x82"]}))
    assert run(["consume", topic, "-b", bootstrap]) == 0
    assert capsysbinary.readouterr().out == b"\xff\xfe\n\xc3\xa9\n\nnull\n\xe2\x82\n"
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert run(["consume", topic, "-b", bootstrap]) == 0
    assert terminal.getvalue() == "\ufffd\ufffd\né\n\nnull\n\ufffd\n"


def test_a_record_without_a_timestamp_has_null_in_parquet(
    bootstrap: str, topic: str, admin: Admin, tmp_path: Path, capsys: Capture
) -> None:
    """``odradek produce`` can send the file again. It would refuse a timestamp of -1 ms."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap) as producer:  # waits until the partition has a leader
        producer.send(topic, b"1", timestamp=1_700_000_000_000)
    connection = raw.Connection(bootstrap)
    stored = encode_batch([SimpleRecord(b"", b"2"), SimpleRecord(b"", b"3")], now_ms=-1)
    raw.check_produced(topic, connection.call(raw.produce_request(topic, 0, stored)))
    connection.socket.close()
    file = tmp_path / "records.parquet"
    assert run(["consume", topic, "--output", str(file), "-b", bootstrap]) == 0
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert pq.read_table(file).column("timestamp").to_pylist() == [moment, None, None]
    assert run(["produce", topic, "--file", str(file), "-b", bootstrap]) == 0, capsys.readouterr().err


def test_json_lines_have_all_columns() -> None:
    """This also holds for a part of a batch, as ``--max-records`` writes it."""
    headers = [None, [{"key": "n", "value": b"1"}, {"key": "n", "value": None}], None, [{"key": "ü", "value": b"\xff"}]]
    times = [1_700_000_000_000_000, 1_700_000_000_007_000, -2000, 1_700_000_000_000_000]
    columns: dict[str, list[object]] = {
        "key": [b"k", None, b"\xff", b'"'], "value": [None, b"{}", b"", b"\xf0\x9f\x98\x80"], "topic": ["t"] * 4,
        "partition": [3] * 4, "offset": [7, 8, 10, 11], "timestamp": times, "headers": headers,
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(columns, schema(JSON_COLUMNS))
    expected = [
        {"key": "k", "value": None, "offset": 7, "timestamp": "2023-11-14T22:13:20+00:00", "headers": None},
        {"key": None, "value": "{}", "offset": 8, "timestamp": "2023-11-14T22:13:20.007000+00:00",
         "headers": [{"key": "n", "value": "1"}, {"key": "n", "value": None}]},
        {"key": {"base64": "/w=="}, "value": "", "offset": 10, "timestamp": "1969-12-31T23:59:59.998000+00:00",
         "headers": None},
        {"key": '"', "value": "\N{GRINNING FACE}", "offset": 11, "timestamp": "2023-11-14T22:13:20+00:00",
         "headers": [{"key": "ü", "value": {"base64": "/w=="}}]},
    ]  # fmt: skip
    for begin in range(5):
        for count in range(5 - begin):
            lines = json_lines(batch.slice(begin, count)).splitlines()
            found = [json.loads(line) for line in lines]
            assert found == [{**row, "topic": "t", "partition": 3} for row in expected[begin : begin + count]]
    assert list(found or json.loads(json_lines(batch).splitlines()[0])) == list(JSON_COLUMNS)


def test_a_timestamp_is_null_if_missing_and_milliseconds_after_the_year_9999() -> None:
    expected = {
        -1: None,
        -1000: "1969-12-31T23:59:59+00:00",
        0: "1970-01-01T00:00:00+00:00",
        253_402_300_799_999: "9999-12-31T23:59:59.999000+00:00",
        253_402_300_800_000: 253_402_300_800_000,
        9_000_000_000_000_007: 9_000_000_000_000_007,
        -62_135_596_800_000: "0001-01-01T00:00:00+00:00",
        -62_135_596_800_001: -62_135_596_800_001,
    }
    one: dict[str, list[object]] = {name: [None] for name in JSON_COLUMNS} | {
        "topic": ["t"], "partition": [0], "offset": [0],
    }  # fmt: skip
    rows = [pa.RecordBatch.from_pydict(one | {"timestamp": [ms * 1000]}, schema(JSON_COLUMNS)) for ms in expected]
    assert [json.loads(json_lines(row))["timestamp"] for row in rows] == list(expected.values())


def test_a_timestamp_after_the_year_9999_can_be_sent_again(
    bootstrap: str, admin: Admin, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, {"message.timestamp.after.max.ms": str((1 << 63) - 1)})])
    file = tmp_path / "rows"
    file.write_text('{"value": "a", "timestamp": 253402300800007}\n{"value": "b", "timestamp": null}\n')
    with file.open("a") as more:
        more.write('{"value": "c", "timestamp": 1790000000000000000}\n')
    for _ in "ab":
        assert run(["produce", topic, "--file", str(file), "--format", "json", "-b", bootstrap]) == 0
        capsys.readouterr()
        assert run(["consume", topic, "--json", "-b", bootstrap]) == 0
        file.write_text(capsys.readouterr().out)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["timestamp"] for row in rows[::3]] == [253_402_300_800_007] * 2
    assert rows[1]["timestamp"] == rows[4]["timestamp"] > "2020", "null: the time of sending"
    assert [row["timestamp"] for row in rows[2::3]] == [1_790_000_000_000_000_000] * 2
    assert run(["consume", topic, "--output", str(tmp_path / "x.parquet"), "-b", bootstrap]) == 1
    says = f"{topic}-0 offset 2: a column of times does not hold the timestamp 1790000000000000000 ms: "
    said = capsys.readouterr().err.replace("\n", " ")
    assert says + "read records instead of columns (odradek consume --format json or csv), or skip the offset; " in said
    assert run(["consume", topic, "--tail", "1", "--format", "csv", "-b", bootstrap]) == 0
    assert "1790000000000000000" in capsys.readouterr().out
    with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert next(one.timestamp_ms for one in consumer if one.offset == 2) == 1_790_000_000_000_000_000


@pytest.mark.parametrize(
    ("options", "unbuffered"),
    [
        ([], ""),
        (["--json"], "1"),
        (["--follow"], ""),
        (["--group"], "1"),
        (["--version"], ""),
        (["--version"], "1"),
        (["info", "--json"], ""),
    ],
)
def test_a_full_disk_gives_a_one_line_error(
    bootstrap: str, filled: str, group: str, options: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = PLAIN.copy() if options in ([], ["--version"]) else odradek_command()
    command += options if options[:1] in (["--version"], ["info"]) else ["consume", filled, "-b", bootstrap, *options]
    command += [group] if options == ["--group"] else []
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, text=True, timeout=60)
    assert done.returncode == 1
    *long_work, line = done.stderr.splitlines()
    assert all(one.startswith(("Reading ", filled)) for one in long_work)
    assert line.startswith("odradek: ")
    assert line.endswith(": No space left on device: make room there, or write to another place")
    if "consume" in command:
        assert line == "odradek: standard output: No space left on device: make room there, or write to another place"
    if options == ["--group"]:
        assert committed(bootstrap, group, filled) == {}, "records that were not written are not committed"


def test_a_time_after_the_last_record_gives_a_warning(bootstrap: str, filled: str, capsys: Capture) -> None:
    assert run(["consume", filled, "--from", "2040-01-01T00:00:00", "-b", bootstrap]) == 0
    warning = f"Warning: {filled} has no record at or after 2040-01-01T00:00:00: nothing is read.\n"
    assert capsys.readouterr() == ("", warning)


def test_a_start_offset_beyond_the_log_end_gives_a_warning(
    bootstrap: str, filled: str, publish: Publish, capsys: Capture
) -> None:
    warning = f"Warning: offset 99 of {filled}-1 is outside the log, which ends at 10: "
    assert run(["consume", f"{filled}:1", "--from", "99", "-b", bootstrap]) == 0
    assert capsys.readouterr() == ("", warning + "nothing is read.\n")
    command = [*odradek_command(), "consume", f"{filled}:1", "--from", "99", "--follow"]
    process = subprocess.Popen([*command, "--max", "1", "-b", bootstrap], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == warning + "10 is used.\n"
        publish(filled, {1: 11})
        written, said = process.communicate(timeout=30)
        assert written == "1:0\n", "from the log end on, not the whole log"
        assert all(line.startswith("Waiting for records of ") for line in said.splitlines())
    finally:
        process.kill()
        process.wait()


def test_a_short_output_without_a_reader_ends_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is so short that it stays in the buffer until the process ends."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed_pipe:
        done = subprocess.run([*PLAIN, "--version"], stdout=closed_pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("options", "unbuffered"), [([], "1"), (["--json"], ""), (["--follow"], "1"), (["--group"], "")]
)
def test_consume_ends_without_a_message_when_the_reader_stops(
    bootstrap: str, admin: Admin, topic: str, group: str, options: list[str], unbuffered: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap) as producer:
        producer.send_batch(topic, pa.record_batch({"value": [b"x" * 1000] * 2000}))
    command = [*(odradek_command() if options else PLAIN), "consume", topic, "-b", bootstrap, *options]
    command += [group] if options == ["--group"] else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"xxx" in process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().splitlines()
        assert all(line.startswith((b"Reading ", b"Waiting ", topic.encode())) for line in said), "before the first"
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()
    if options == ["--group"]:
        assert committed(bootstrap, group, topic) == {}, "records that were not written are not committed"


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    with Admin(bootstrap) as admin:
        return {
            tp.partition: found.offset for tp, found in admin.list_group_offsets(group).items() if tp.topic == topic
        }


def test_settings_of_the_consumer_come_from_a_file(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("isolation.level=read_committed\nmax.poll.records=3\n")
    for more in ([], ["--group", filled + "-g"]):
        assert run(["consume", filled, "-b", bootstrap, "--command-config", str(file), *more]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 20
    file.write_text("isolation.level=read_some\n")
    assert run(["consume", filled, "-b", bootstrap, "--command-config", str(file)]) == 2
    assert "isolation_level: read_uncommitted or read_committed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--isolation", "--isolation-level"])
def test_the_isolation_level_is_an_option(
    name: str, bootstrap: str, admin: Admin, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    """With read_committed, aborted records are left out, and the output ends before the first open transaction."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    file = tmp_path / "consumer.properties"
    file.write_text("isolation.level=read_committed\n")
    command = ["consume", topic, "-b", bootstrap]
    with Producer(bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for value, end in ((b"a", producer.abort_transaction), (b"c", producer.commit_transaction)):
            producer.begin_transaction()
            producer.send(topic, value)
            producer.flush()
            end()
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.flush()
        for more, expected in (
            ([], "a\nc\nopen\n"),
            ([name, "read_uncommitted"], "a\nc\nopen\n"),
            ([name, "read_committed"], "c\n"),
            (["--command-config", str(file)], "c\n"),
            ([name, "read_uncommitted", "--command-config", str(file)], "a\nc\nopen\n"),
            ([name, "read_committed", "--from", "4"], ""),
            ([name, "read_committed", "--follow", "--max", "1"], "c\n"),
            ([name, "read_committed", "--group", unique("cli")], "c\n"),
        ):
            assert run([*command, *more]) == 0
            out, err = capsys.readouterr()
            assert out == expected, more
            is_held_back = "open" not in expected and "--follow" not in more and "--group" not in more
            assert err.startswith("Warning: records behind an open transaction are left out") is is_held_back, more
        producer.abort_transaction()


def test_an_unknown_isolation_level_is_refused_before_a_connection(capsys: Capture) -> None:
    assert run(["consume", "t", "--isolation", "serializable", "-b", "127.0.0.1:1"]) == 2
    assert "--isolation 'serializable': expected read_committed or read_uncommitted" in capsys.readouterr().err


def test_a_member_commits_the_records_that_it_wrote(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    group = unique("cli")
    member = ["consume", filled, "--group", group, "-b", bootstrap]
    assert run([*member, "--max-records", "13"]) == 0
    first = capsys.readouterr().out.splitlines()
    assert len(first) == 13
    assert sum(committed(bootstrap, group, filled).values()) == 13
    assert run([*member, "--output", str(tmp_path / "rest")]) == 0
    assert "7 records" in capsys.readouterr().out
    rest = [value.decode() for value in pq.read_table(tmp_path / "rest").column("value").to_pylist()]
    assert sorted(first + rest) == sorted(f"{p}:{n}" for p in (0, 1) for n in range(10)), "each record once"
    assert committed(bootstrap, group, filled) == {0: 10, 1: 10}
    assert run(member) == 0
    assert capsys.readouterr().out == "", "a group reads nothing twice"


def test_a_member_starts_at_the_given_position_and_invalid_options_are_refused(
    bootstrap: str, filled: str, capsys: Capture
) -> None:
    member = ["consume", filled, "--group", unique("cli"), "-b", bootstrap]
    assert run([*member, "--from", "latest"]) == 0
    assert capsys.readouterr().out == ""
    for wrong, message in (
        (["consume", f"{filled}:1", "--group", "g"], "omit the partitions"),
        (["consume", filled, "--group", "g", "--from", "7"], "odradek groups reset"),
        (["consume", filled, "--output", "x.parquet", "--json"], "omit --json"),
        (["consume", "no-such-topic", "--group", "g"], "no-such-topic"),
        (["consume", filled, "--from", "yesterday"], "--from 'yesterday': expected earliest, latest, an offset, -N"),
        (["consume", f"{filled}:x"], f"odradek: '{filled}:x': expected TOPIC or TOPIC:0,1,2"),
        (["consume", filled, "--fol"], "no such option --fol (did you mean --follow?)"),
    ):
        assert run([*wrong, "-b", bootstrap]) == 2
        assert message in capsys.readouterr().err
    assert run(["consume", filled, "--group", "g", "-b", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("odradek: cannot reach 127.0.0.1:1")


@pytest.mark.parametrize("options", [[], ["--group"]], ids=["alone", "member"])
def test_consume_follows_until_it_is_interrupted(
    bootstrap: str, filled: str, publish: Publish, options: list[str]
) -> None:
    group = unique("cli")
    options = [*options, group] if options else ["--from", "8"]
    command = [*odradek_command(), "consume", filled, *options, "--follow", "-b", bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        seen = [process.stdout.readline().strip() for _ in range(20 if "--group" in options else 4)]
        publish(filled, {1: 1})
        seen.append(process.stdout.readline().strip())
        assert seen[-1] == "1:0", "a record that was sent while it followed"
        if "--group" in options:
            eventually(lambda: committed(bootstrap, group, filled) == {0: 10, 1: 11})
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert all(line.startswith(("Waiting for ", "Reading ", filled)) for line in err.splitlines()), err
    finally:
        process.kill()
        process.wait()


def test_two_members_share_the_records(bootstrap: str, filled: str, publish: Publish) -> None:
    group = unique("cli")
    command = [*odradek_command(), "consume", filled, "--group", group, "--follow", "--json"]
    pipe = subprocess.PIPE
    members = [subprocess.Popen([*command, "-b", bootstrap], stdout=pipe, stderr=pipe, text=True) for _ in "ab"]
    try:
        with Admin(bootstrap) as admin:

            def shares() -> list[int]:
                known = group in {listed.group_id for listed in admin.list_groups()}
                found = admin.describe_groups([group])[group].members if known else ()
                return [len(member.assignment) for member in found]

            eventually(lambda: shares() == [1, 1], within_s=60)
        publish(filled, {0: 5, 1: 5})
        eventually(lambda: committed(bootstrap, group, filled) == {0: 15, 1: 15}, within_s=60)
        for member in members:
            member.send_signal(signal.SIGINT)
        written = [[json.loads(line) for line in member.communicate(timeout=30)[0].splitlines()] for member in members]
        assert [member.returncode for member in members] == [0, 0]
        offsets = sorted((row["partition"], row["offset"]) for rows in written for row in rows)
        assert offsets == [(p, n) for p in (0, 1) for n in range(15)], "each record once, by one of the members"
    finally:
        for member in members:
            member.kill()
            member.wait()


def test_records_before_one_that_csv_cannot_hold_are_written_and_committed(
    bootstrap: str, admin: Admin, topic: str, group: str, capsys: Capture
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    with Producer(bootstrap) as producer:  # one batch
        for key in (None, None, b"\xfe", None):
            producer.send(topic, b"v", key=key)
    command = ["consume", topic, "--format", "csv", "-b", bootstrap]
    tp = TopicPartition(topic, 0)
    says = (
        f"odradek: the key at offset 2 of {topic}-0 is not UTF-8, and CSV holds only text: use --format json or parquet"
    )
    for more, way in (
        ([], f"odradek consume {topic}:0 --from 3 --format csv -b {bootstrap}"),
        (
            ["--group", group],
            f"odradek groups reset --group {group} --topic {topic}:0 --to-offset 3 --execute -b {bootstrap}",
        ),
    ):
        assert run([*command, *more]) == 1
        found = capsys.readouterr()
        assert [row.split(",")[4] for row in found.out.splitlines()] == ["offset", "0", "1"]
        assert found.err.startswith(says)
        assert found.err.endswith(f": {way}\n")
        assert run(way.split()[1:]) == 0, "the remedy works as it is printed"
        capsys.readouterr()
    assert admin.list_group_offsets(group)[tp].offset == 3
    assert run([*command, "--group", group]) == 0
    rest = capsys.readouterr().out
    assert [row.split(",")[4] for row in rest.splitlines()] == ["offset", "3"]


def test_the_offset_of_the_record_that_csv_cannot_hold_is_committed(
    bootstrap: str, admin: Admin, topic: str, group: str, capsys: Capture
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    with Producer(bootstrap) as producer:
        for key in (None, b"\xfe", None):
            producer.send(topic, b"v", key=key)
    assert run(["consume", topic, "--format", "csv", "--group", group, "-b", bootstrap]) == 1
    assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 1
    assert run(["consume", topic, "--json", "--group", group, "-b", bootstrap]) == 0, "another format goes on there"
    assert [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()[2:]] == [1, 2]
