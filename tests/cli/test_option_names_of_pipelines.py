"""A line of ``odradek pipeline`` about a wrong argument names the option as the user has to write it.

Before, many lines had the words of the argument ("table format 'x' is unknown"), and some no name at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cli.main import run
from odradek.cli.option_fields import flag
from odradek.cli.pipeline.options import AdoptLine, IngestLine, ReplayLine, TransformLine
from odradek.pipelines.option_declarations import declared_options

NOWHERE = ["-b", "127.0.0.1:1"]
COMMANDS = {
    "ingest": (IngestLine, ["--topics", "a", "--group", "g", "--output", "t"]),
    "replay": (ReplayLine, ["--topics", "a", "--output", "t"]),
    "transform": (
        TransformLine,
        ["--topics", "a", "--group", "g", "--to-topic", "b", "--checkpoint", "c", "--sql", "SELECT value FROM records"],
    ),
    "adopt": (AdoptLine, ["--group", "g", "--output", "t"]),
}
JSON = '{"events":{"0":[0,1]}}'


def unknown_values() -> Iterator[tuple[str, str]]:
    """Each option with a fixed set of values, of each command that checks its values here."""
    for command in ("ingest", "replay", "transform"):
        kind, _ = COMMANDS[command]
        for name, declared in declared_options(kind).items():
            if declared.option.choices:
                yield command, flag(kind, name)


def line(capsys: pytest.CaptureFixture[str], words: list[str], place: Path) -> str:
    before = sorted(place.rglob("*"))
    assert run(words) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1), error
    assert sorted(place.rglob("*")) == before
    return error


@pytest.mark.parametrize(("command", "option"), list(unknown_values()))
def test_an_unknown_value(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pipeline", command, *NOWHERE, *COMMANDS[command][1], option]
    assert f"odradek: {option} 'x' is unknown; choose one of " in line(capsys, [*words, "x"], tmp_path)


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        (
            "ingest",
            "--flat",
            "--flat needs fields: give --value-format json or avro, and --schema with the fields of the",
        ),
        ("ingest", "--value-format json --flat", "--flat needs fields: give --schema with the fields of the values"),
        ("replay", "--schema a", "--schema needs --value-format json or avro: raw does not change bytes"),
        ("transform", "--value-format avro", "--value-format avro needs --schema: the Avro schema, or a file with it"),
        ("ingest", "--framing confluent", "--framing and --writer-schema are for --value-format avro, not raw"),
        ("ingest", "--writer-schema 7=no.avsc", "--writer-schema 7: "),
        ("ingest", "--value-format avro --schema no.avsc", "--schema: the file no.avsc does not exist"),
        ("ingest", "--partition-by nope", "--partition-by nope: the table's columns are topic, partition, offset"),
        ("ingest", "--partition-by topic,topic", "--partition-by topic, topic: column topic is named twice"),
        ("ingest", "--batch-size much", "--batch-size: expected a size such as 64m or 1048576"),
        ("replay", "--task-size much", "--task-size: expected a size such as 64m or 1048576"),
        ("transform", "--batch-size much", "--batch-size: expected a size such as 64m or 1048576"),
        ("ingest", "--trigger often", "--trigger 'often': expected an interval such as 10s"),
        ("ingest", "--fence-commits --option commitOffsets=false", "--fence-commits: with commitOffsets=false nothing"),
        ("ingest", "--option subscribe=b", "--option subscribe=b: an argument says the topics already"),
        ("transform", "--producer-option security.protocol=SSL", "--producer-option security.protocol: records are"),
        ("ingest", "--master nonsense", "--master 'nonsense': expected local[N], local[*], spark://HOST:PORT"),
        ("replay", "--master nonsense", "--master 'nonsense': expected local[N], local[*], spark://HOST:PORT"),
        ("transform", "--master nonsense", "--master 'nonsense': expected local[N], local[*], spark://HOST:PORT"),
        ("adopt", "--master nonsense", "--master 'nonsense': expected local[N], local[*], spark://HOST:PORT"),
        ("ingest", f"--output {JSON}", f"--output {JSON}: this is JSON, and not a directory or a URI"),
        ("replay", f"--output {JSON}", f"--output {JSON}: this is JSON, and not a directory or a URI"),
        ("adopt", f"--output {JSON}", f"--output {JSON}: this is JSON, and not a directory or a URI"),
        ("ingest", f"--checkpoint {JSON}", f"--checkpoint {JSON}: this is JSON, and not a directory or a URI"),
        ("transform", f"--checkpoint {JSON}", f"--checkpoint {JSON}: this is JSON, and not a directory or a URI"),
        ("adopt", "--output /dev/null", "--output /dev/null cannot be used: /dev/null is not a folder. Choose another"),
        (
            "ingest",
            "--output /dev/null",
            "--output /dev/null cannot be used: /dev/null is not a folder. Choose another",
        ),
        (
            "ingest",
            "--checkpoint /dev/null",
            "--checkpoint /dev/null cannot be used: /dev/null is not a folder. Choose",
        ),
    ],
)
def test_the_line_names_the_option(
    command: str,
    words: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = COMMANDS[command][1]
    changed = words.split()
    if changed[0] in given:
        at = given.index(changed[0])
        given = given[:at] + given[at + 2 :]
    assert f"odradek: {says}" in line(capsys, ["pipeline", command, *NOWHERE, *given, *changed], tmp_path)
