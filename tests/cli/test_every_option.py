"""Every option of every command with each kind of wrong value, and each command with words that do not belong to it.

Each ends within seconds with exit code 1 or 2, nothing on stdout, and one line that names the option or the value and
has a remedy. ``test_wrong_inputs`` draws such lines at a broker that does not exist; here the broker exists, and a
value that is accepted by mistake is found.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.brokers import unique
from test_wrong_inputs import COMMANDS, NOWHERE, VALID, options_of

from odradek.cli.main import run
from odradek.client import Admin, NewTopic
from odradek.core.ids import OffsetAndMetadata

Capture = pytest.CaptureFixture[str]
NUMBERS = ("x", "9" * 23, "", "1,000", "--")
WHOLE = ("1.5", "1e3")
BROKEN = ("nan", "inf", "-inf")
FILES = ("no/such", "dir", "unreadable", "binary", "broken.properties", "")
FOLDERS = ("file", "file/x", "", "fifo")
ADDRESSES = ("nonsense", "h:99999", "", ",", NOWHERE, "no-such-host.invalid:9092", "http://localhost:9092", "h:")
SPANS = ("5", "tomorrow", "-5s", "", "9999999999999999d")
TIMES = ("yesterday", "2026-13-45", "")
# By the name of an option's value; a number, a path and a list of choices are known by their form.
VALUES: dict[str, tuple[str, ...]] = {
    "HOST:PORT[,HOST:PORT]": ADDRESSES, "HOST:PORT": ("nonsense", "h:99999", "", "h:"),
    "HOST:PORT[,HOST:PORT][/CHROOT]": ("h:99999", "", ",", NOWHERE, "no-such-host.invalid:2181", f"{NOWHERE}//x"),
    "NAME=VALUE": ("nonsense", "=x", "", "a"), "GROUP": ("no-such-group",), "NAME": ("",),
    "TOPIC": ("", "a/b", "no-such-topic"), "TOPIC[:0,1]": ("", "{topic}:x", ":0", "{topic}:99", "no-such-topic"),
    "T[,T]": ("", ",", "a/b", "no-such-topic"), "SPAN": SPANS, "10s": ("5x", "tomorrow", "-5s", ""),
    "TIME": TIMES, "TIME|SPAN": TIMES, "PnDTnHnMnS": ("x", "5", ""),
    "OFFSET|-N|-SPAN|TIME": ("x", "", "9" * 23, "1.5"), "OFFSET|end": ("x", "", "-5", "9" * 23),
    "earliest|OFFSET|TIME": ("x", "", "-5"), "latest|OFFSET|TIME": ("x", "", "-5"),
    "earliest|latest|OFFSET|-N|-SPAN|TIME": ("x", "", "9" * 23), "REGEX": ("(", "*"), "PATTERN": ("(",),
    "SIZE": ("x", "-1", "", "1zb"), "CHAR": ("ab", ""), "URL": ("",), "[-]NAME": ("nonsense", ""),
    "JSON": ("{", "", "[1]"), "TEXT|FILE": ("no/such", "dir", "{", ""), "ID=FILE": ("1=no/such", "x", "x=file", ""),
    "MODULE:NAME": ("nonsense", "no.such:f", "", ":"), "1:2,2:3,…": ("x", "", "1:x"), "STATE": ("nonsense", ""),
    "TYPE": ("nonsense", ""), "COLUMN": ("",), "COL[,COL]": ("", ","), "DIR": FOLDERS[:3], "DIR|URI": FOLDERS[:3],
    "FILE.html": ("no/such/x.html", "dir", ""), "TEMPLATE": ("x", ""), "QUERY": ("",), "ID": ("",), "KEY": (),
}  # fmt: skip
# Values that are right there, or that another error comes before.
RIGHT = {
    ("transactions list", "REGEX", "*"), ("serve", "NAME", "a"),
    ("consume", "GROUP", "no-such-group"), ("zookeeper migrate", "HOST:PORT[,HOST:PORT]", NOWHERE),
    ("transactions find-hanging", "TOPIC", "no-such-topic"),
    ("cluster convert", "DIR", "file"), ("cluster convert", "DIR", "file/x"), ("cluster convert", "DIR", "fifo"),
    ("groups locate", "GROUP", "no-such-group"), ("topics create", "TOPIC", "no-such-topic"),
    ("pipeline adopt", "DIR|URI", "file"), ("pipeline adopt", "DIR|URI", "file/x"),
    ("pipeline ingest", "GROUP", "no-such-group"), ("pipeline transform", "GROUP", "no-such-group"),
}  # fmt: skip
UNKNOWN_THERE = (
    "no-such-group", "no-such-topic", "a/b", "no-such-host.invalid:9092", NOWHERE, "{topic}:99", "binary",
    "broken.properties",
)  # fmt: skip
"""Values that only a server refuses, and contents that are right for some options."""
NEW_FILES = {"--undo-file", "--output"}
"""The command writes there, so a file that exists may be replaced."""
NOT_RUN = ("check-history", "demo", "groups apply", "groups plans", "info", "mcp")
"""They would start, read no option, or look up a plan first."""
NAMED_BY_ARGUMENT = {"--topic": "t", "--group": "g"}
EXCLUDED = {"--subscribe-pattern": ("--topics",)}
REMEDY = re.compile(
    r"--\w|\b[bz]\b|\b(expected|give|write|did you mean|odradek|missing|the (cluster|file) has|set|try again|correct|"
    r"remove|leave|omit|install|check|add|choose|save|see|say|quote|a (name|line) has only|must|needs|without|is for|"
    r"are for|takes?|between|at (least|most))\b|: here, ",
    re.IGNORECASE,
)


class Case(NamedTuple):
    words: tuple[str, ...]
    names: tuple[str, ...]
    """The line has one of these texts."""


READ_A_TABLE = ("pipeline adopt", "pipeline transform", "pipeline verify")


def is_alone(command: str) -> bool:
    """Whether the lines of a command reach no server here: ZooKeeper's, those that would start one or write, and those
    that read a table first."""
    return "-z" in VALID[command] or command in ("serve", "monitor", "produce", *READ_A_TABLE)


def wrong_values(option: Any) -> tuple[str, ...]:
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    metavar = option.metavar or ""
    if kind in (int, float):
        least = (str(int(option.min) - 1),) if option.min is not None else ()
        most = (str(int(option.max) + 1),) if option.max is not None else ()
        return (*NUMBERS, *(WHOLE if kind is int else BROKEN), *least, *most)
    if kind is Path:
        files = ("no/such/file", "dir", "") if NEW_FILES & set(option.opts) else FILES
        return FOLDERS if metavar == "DIR" else files
    if "|" in metavar and metavar == metavar.lower():
        return ("nonsense", "", f"{metavar.partition('|')[0]} ", metavar.replace("|", ","))
    return VALUES.get(metavar, ("",))


def without(valid: tuple[str, ...], option: Any) -> tuple[str, ...]:
    """Returns a line without this option, and without the argument that has the same meaning."""
    words = list(valid)
    names = [*option.opts, *EXCLUDED.get(max(option.opts, key=len), ())]
    for name in names:
        while name in words:
            at = words.index(name)
            del words[at : at + (1 if option.is_flag else 2)]
    if words and any(words[0] == NAMED_BY_ARGUMENT.get(name) for name in option.opts):
        del words[0]
    return tuple(words)


def cases_of_values(command: str) -> Iterator[Case]:
    for option in options_of(command):
        if option.is_flag or "completion" in option.name:
            continue
        name, base = max(option.opts, key=len), without(VALID[command], option)
        for value in wrong_values(option):
            if (command, option.metavar, value) in RIGHT or (is_alone(command) and value in UNKNOWN_THERE):
                continue
            yield Case((*base, name, value), (*option.opts, *([value] if value else [])))


def cases_of_words(command: str) -> Iterator[Case]:
    """Yields lines with words that do not belong to the command, and lines that lack one."""
    valid, options = VALID[command], options_of(command)
    known = {name for one in options for name in one.opts}
    sisters = sorted({name for one in COMMANDS for other in options_of(one) for name in other.opts} - known)
    for name in random.Random(command).sample([one for one in sisters if one[:2] == "--"], 3):
        yield Case((*valid, name, "x"), (name,))
    arguments = [one for one in COMMANDS[command].params if one.param_type_name == "argument"]
    if all(one.nargs != -1 for one in arguments):
        yield Case((*valid, "one", "more"), ("one", "more"))
    for option in options:
        name = max(option.opts, key=len)
        if option.is_flag:
            yield Case((*valid, f"{name}=1"), (name,))
        else:
            yield Case((*valid, name), (name,))
        if not option.is_flag and not option.multiple and "completion" not in option.name:
            yield Case((*without(valid, option), name, "1", name, "2"), (name,))
        if option.required and option.opts[0] in valid:
            yield Case(without(valid, option), tuple(option.opts))


@pytest.fixture(scope="module")
def names(bootstrap: str) -> dict[str, str]:
    """A topic and a group with a commit, for commands that read; and others, for commands that write."""
    topic = unique("every-option")
    made = {name: f"{topic}-{name}" for name in ("topic", "group")}
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(made["topic"], 1, 1)])
        tp = admin.partitions(made["topic"])[0]
        admin.alter_group_offsets(made["group"], {tp: OffsetAndMetadata(0)})
    return made | {"bootstrap": bootstrap}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ODRADEK_")]:
        monkeypatch.delenv(name)
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_text("/consumers/g/offsets/t/0:5\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80\xc3(\n=\n")
    (tmp_path / "broken.properties").write_text('a\\u12=1\n{"a":\n')
    (tmp_path / "unreadable").symlink_to("/proc/self/mem")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def faults_of(command: str, cases: list[Case], names: dict[str, str], here: Path, capsys: Capture) -> list[str]:
    live = {"t": names["topic"], "g": names["group"], NOWHERE: names["bootstrap"]}
    places = {"{file}": str(here / "file"), "{folder}": str(here / "folder")}
    # A word that is wrong stays as it is: the value of an option at the end of the line.
    is_read = not is_alone(command)
    faults = []
    for words, named in cases:
        base = [places.get(word, live.get(word, word) if is_read else word) for word in words[:-1]]
        last = [places.get(word, word).replace("{topic}", names["topic"]) for word in words[-1:]]
        line = [*command.split(), *base, *last]
        began = time.monotonic()
        try:
            code: Any = run(line)
        except BaseException as error:
            code = repr(error)
        took = time.monotonic() - began
        out, text = capsys.readouterr()
        is_named = any(name.replace("{topic}", names["topic"]) in text or _bare(name) in text for name in named)
        if code not in (1, 2) or out or text.count("\n") != 1 or not is_named or not REMEDY.search(text) or took > 60:
            faults.append(f"{line!r}: {code}, {took:.1f} s, {out + text!r}, expected one of {named}")
    return faults


def _bare(option: str) -> str:
    """Returns the words of an option, as a sentence has them; for a value the value."""
    return option.removeprefix("--").replace("-", " ") if option[:2] == "--" else option


def check(command: str, cases: list[Case], names: dict[str, str], here: Path, capsys: Capture) -> None:
    faults = faults_of(command, cases, names, here, capsys)
    assert not faults, "\n" + "\n".join(faults)


RUN = sorted(COMMANDS.keys() - set(NOT_RUN))


@pytest.mark.parametrize("command", RUN)
def test_words_that_do_not_belong_to_a_command(
    command: str, names: dict[str, str], here: Path, capsys: Capture
) -> None:
    check(command, list(cases_of_words(command)), names, here, capsys)


@pytest.mark.parametrize("command", RUN)
def test_some_wrong_values(command: str, names: dict[str, str], here: Path, capsys: Capture) -> None:
    quick = [one for one in cases_of_values(command) if not command.startswith("pipeline")]
    check(command, random.Random(command).sample(quick, min(8, len(quick))), names, here, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN)
def test_every_wrong_value(command: str, names: dict[str, str], here: Path, capsys: Capture) -> None:
    check(command, list(cases_of_values(command)), names, here, capsys)


@pytest.mark.parametrize("group", ["groups", "topics", "transactions", "cluster", "log", "pipeline", "zookeeper", ""])
def test_an_unknown_command_is_named(group: str, capsys: Capture) -> None:
    assert run([*group.split(), "no-such"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no-such" in line
    assert REMEDY.search(line)


def test_an_option_with_two_values_is_refused(bootstrap: str, capsys: Capture) -> None:
    """The last one counted: a line for one cluster with another one before it changed the wrong cluster."""
    assert run(["topics", "list", "-b", NOWHERE, "--bootstrap-server", bootstrap]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"odradek: --bootstrap-server is given twice (also as -b), with {NOWHERE!r} and {bootstrap!r}: leave one out "
        "(see odradek topics list --help)\n"
    )
    assert run(["topics", "list", "-b", bootstrap, "-b", bootstrap, "--timeout", "9000"]) == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "serve --data-dir --listen h:1",
            "--data-dir needs a value before --listen: --data-dir DIR (see odradek serve",
        ),
        ("top --once h:9092", "unexpected argument h:9092: is it an address? Here, -b h:9092 (see odradek top"),
    ],
)
def test_a_word_that_is_missing_is_named(line: str, says: str, capsys: Capture) -> None:
    assert run(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"odradek: {says}")


def test_a_path_with_a_space_at_its_end_is_shown(here: Path, capsys: Capture) -> None:
    assert run(["topics", "list", "-b", NOWHERE, "--command-config", " no.properties"]) == 2
    text = "--command-config ' no.properties': the path begins or ends with a space: remove it"
    assert capsys.readouterr().err.startswith(f"odradek: {text}")
    assert run(["log", "check", "--data-dir", " data"]) == 2
    assert capsys.readouterr().err.startswith("odradek: --data-dir ' data': the path begins or ends with a space")


def test_a_topic_that_exists_names_the_other_command(names: dict[str, str], capsys: Capture) -> None:
    assert run(["topics", "create", names["topic"], "-b", names["bootstrap"]]) == 1
    assert "already exists: give another name; odradek topics alter changes a topic" in capsys.readouterr().err


def test_a_reset_of_the_empty_group_shows_no_plan(names: dict[str, str], capsys: Capture) -> None:
    line = ["groups", "reset", "", "--topic", names["topic"], "--to-latest", "-b", names["bootstrap"]]
    assert run(line) == 2
    out, error = capsys.readouterr()
    assert (out, error) == (
        "",
        "odradek: --group: no group has an empty name, and a reset creates none: give a group's name\n",
    )


def test_the_file_of_a_wrong_setting_is_named(here: Path, capsys: Capture) -> None:
    (here / "node").write_text("node.id=1\nlog.retention.mss=5\n")
    for words in (
        ["serve", "--data-dir", "new", "--listen", NOWHERE, "--config-file", "node"],
        ["cluster", "format", "--data-dir", "new", "--config", "node"],
    ):
        assert run(words) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"odradek: {words[-2]} node: unknown config 'log.retention.mss'")
