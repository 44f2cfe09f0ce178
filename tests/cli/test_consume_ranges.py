"""``odradek consume`` between two positions, and with conditions that no record fits."""

from __future__ import annotations

import json

import pytest

from odradek import Producer
from odradek.cli.main import run
from odradek.client import Admin, NewTopic

Capture = pytest.CaptureFixture[str]
HOUR_MS = 3_600_000
NINE = 1_769_850_000_000
"""2026-01-31T09:00 in UTC."""
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def hourly(bootstrap: str, admin: Admin, topic: str) -> str:
    """A topic with two partitions and a record each half hour, from 09:00 on, in turns."""
    admin.create_topics([NewTopic(topic, 2)])
    with Producer(bootstrap) as producer:
        for number in range(8):
            time = NINE + number * HOUR_MS // 2
            producer.send(topic, b"%d" % number, key=b"k%d" % number, partition=number % 2, timestamp=time)
    return topic


@pytest.mark.parametrize(
    ("options", "partitions", "expected"),
    [
        (["--from", "2026-01-31T09:30", "--to", "2026-01-31T11:00"], "", {1, 2, 3}),
        (["--from", "2026-01-31T10:30+01:00", "--until", "2026-01-31T12:00+01:00"], "", {1, 2, 3}),
        (["--to", "2026-01-31T09:00"], "", set()),
        (["--to", "2030-01-01"], "", set(range(8))),
        (["--to", "latest"], "", set(range(8))),
        (["--from", "1", "--to", "3"], "", {2, 3, 4, 5}),
        (["--from", "1", "--to", "3"], ":1", {3, 5}),
        (["--to", "999"], ":0", {0, 2, 4, 6}),
        (["--from", "-3", "--to", "-1"], ":0", {2, 4}),
        (["--to", "-999"], "", set()),
        (["--to", "2026-01-31T11:00", "--tail", "2"], "", {2, 3}),
        (["--to", "2026-01-31T11:00", "--key", "k1"], "", {1}),
        (["--from", "3", "--to", "-3"], "", set()),  # the start is behind the end
    ],
)
def test_only_records_before_the_end_are_read(
    bootstrap: str, hourly: str, capsys: Capture, options: list[str], partitions: str, expected: set[int]
) -> None:
    assert run(["consume", hourly + partitions, "--json", "-b", bootstrap, *options]) == 0
    out, err = capsys.readouterr()
    assert {int(json.loads(line)["value"]) for line in out.splitlines()} == expected
    assert ("No record of" in err) == (not expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "5", "--to", "5"], "--to 5 is not behind --from 5: give a later end"),
        (["--from", "-2", "--to", "-2"], "--to -2 is not behind --from -2"),
        (["--from", "2026-01-31", "--to", "2026-01-30"], "--to 2026-01-30 is not behind --from 2026-01-31"),
        (["--to", "earliest"], "--to earliest: nothing lies before it"),
        (["--to", "noon"], "--to 'noon': expected earliest, latest, an offset"),
        (["--to", "5", "--follow"], "--to 5 ends the command, and has no --follow: omit one of them"),
        (["--to", "5", "--group", "g"], "--to 5 ends the command, and has no --group: omit one of them"),
        (["--to", ""], "--to is empty: give OFFSET|-N|-SPAN|TIME"),
    ],
)
def test_an_end_that_makes_no_sense_is_refused_before_a_connection(
    options: list[str], message: str, capsys: Capture
) -> None:
    assert run(["consume", "t", "-b", NOWHERE, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_search_without_a_result_says_what_was_read(bootstrap: str, hourly: str, capsys: Capture) -> None:
    assert run(["consume", hourly, "--key", "k99", "--grep", "x", "-b", bootstrap]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"No record of {hourly} fits --key 'k99' and --grep 'x': 8 records read.\n")
