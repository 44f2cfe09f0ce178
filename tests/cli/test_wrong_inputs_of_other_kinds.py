"""Wrong files, numbers and names, options that contradict each other or come twice: each ends with one line.

Like ``test_wrong_inputs``, the inputs are drawn from the commands themselves. A name that is allowed ends at port 1.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_wrong_inputs import COMMANDS, NOWHERE, VALID, options_of

from odradek.cli.main import run

Capture = pytest.CaptureFixture[str]
FILES = ("dir", "bin", "empty", "file/x", "loop", "nul", "big", "", "no/such", "a" * 300, "/dev/zero", "/")
NUMBERS = ("9" * 23, "-" + "9" * 23, "1e9", "0x10", "１２", "NaN", "inf", "", "-0", "٣", "1 000", "--", " ")
TEXTS = (
    "", "   ", "a/b", "..", "a" * 300, "x\ny", "\u202eabc", "-", "é", "*", "a,b", ",", ":", "=", "{}", "[]",
    '{"t":{"0":', "'", "%s", "9" * 23, "-1", "dir", "bin",
)  # fmt: skip
LEFT_OUT = ("check-history", "demo", "groups plans", "info", "mcp", "monitor")
"""They have no wrong input of these kinds, or would start."""


def values_of(option: Any) -> tuple[str, ...]:
    metavar = option.metavar or ""
    if metavar in ("N", "MS", "SECONDS", "MIN", "EPOCH"):
        return NUMBERS
    return FILES if any(word in metavar for word in ("FILE", "CSV", "DIR")) else TEXTS


def draw(dice: random.Random, command: str) -> tuple[str, ...]:
    options = [one for one in options_of(command) if "completion" not in one.name]
    valued = [one for one in options if not one.is_flag]
    flags = [one for one in options if one.is_flag]

    def name(option: Any) -> str:
        return str(dice.choice([one for one in option.opts if one.startswith("--")] or option.opts))

    kind = dice.choice(["value", "value", "value", "two", "twice", "flags"])
    if kind == "two" and len(options) > 1:
        words: list[str] = []
        for option in dice.sample(options, 2):
            words += [name(option)] if option.is_flag else [name(option), dice.choice(values_of(option))]
        return (*VALID[command], *words)
    if kind == "flags" and len(flags) > 1:
        return (*VALID[command], *map(name, dice.sample(flags, min(len(flags), 3))))
    option = dice.choice(valued)
    again = (name(option), dice.choice(values_of(option))) if kind == "twice" else ()
    return (*VALID[command], name(option), dice.choice(values_of(option)), *again)


def make_inputs(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "dir").mkdir(parents=True)
    (folder / "file").write_text("/consumers/g/offsets/t/0:5\n")
    (folder / "bin").write_bytes(b"\xff\xfe\x00\x80\xc3(\n=\n")
    (folder / "empty").touch()
    (folder / "nul").write_bytes(b"a=b\0c\n")
    (folder / "big").write_text("x" * 200_000)
    (folder / "loop").symlink_to("loop")


@pytest.mark.slow  # some commands wait for ZooKeeper
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_each_wrong_input_gives_one_line_and_writes_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name in ("ODRADEK_BOOTSTRAP_SERVERS", "ODRADEK_COMMAND_CONFIG", "ODRADEK_ZOOKEEPER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "here"
    faults = []
    for command in sorted(COMMANDS.keys() - set(LEFT_OUT)):
        make_inputs(here)
        monkeypatch.chdir(here)
        before = sorted(here.rglob("*"))
        places = {"{file}": str(here / "file"), "{folder}": str(here / "folder")}
        words = [places.get(word, word) for word in draw(random.Random(f"{seed} {command}"), command)]
        line = [*command.split(), *words]
        try:
            code: Any = run(line)
        except BaseException as error:
            code = repr(error)
        out, error_text = capsys.readouterr()
        written = set(here.rglob("*")) - set(before)
        if code not in (1, 2) or out or error_text.count("\n") != 1 or written:
            faults.append(f"{line!r}: {code}, {out + error_text!r}, written: {written}")
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("serve", "--data-dir", "", "--listen", NOWHERE),
            "--data-dir is empty: give a path (see odradek serve --help)",
        ),
        (("serve", "--data-dir=", "--listen", NOWHERE), "--data-dir is empty: give a path"),
        (("topics", "list", "-b", NOWHERE, "--command-config", ""), "--command-config is empty: give a path"),
        (("topics", "list", "-b", NOWHERE, "--command-config", "/dev/zero"), "it has more than 1,048,576 bytes"),
        (("metadata", "check", "--data-dir", "a" * 300), f"{'a' * 300}: File name too long"),
        (("pipeline", "verify", ""), "TABLE is empty: give a folder of Parquet files, or a Delta table"),
        pytest.param(
            ("pipeline", "history", "-b", NOWHERE, "--output", "file"),
            "--output file: it is a file, not a folder",
            marks=pytest.mark.slow,
        ),
        (("topics", "list", "-b", NOWHERE, "--timeout", "inf"), "--timeout 'inf': expected a whole"),
        (
            ("pipeline", "ingest", *VALID["pipeline ingest"], "--keep-raw"),
            "--value-format raw has the bytes as the value: --keep-raw is for json and avro",
        ),
        (("serve", *VALID["serve"], "--add-scram", "bin"), "--add-scram bin: it is UTF-16: save it as UTF-8"),
        (("serve", *VALID["serve"], "--add-scram", "file"), "--add-scram file, line 1: expected SCRAM-SHA-256=["),
        (
            ("serve", *VALID["serve"], "--delete-config", "log.retention.mss"),
            "--delete-config: unknown config 'log.retention.mss'; did you mean 'log.retention.ms'?",
        ),
    ],
)
def test_the_line_names_the_thing(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    make_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run([word.format(folder="folder") if word == "{folder}" else word for word in words]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert says in error
    assert sorted(tmp_path.rglob("*")) == before
