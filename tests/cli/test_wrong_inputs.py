"""Wrong inputs drawn from the options of all commands: each ends with one line that names the thing.

The inputs are drawn from the commands themselves, so a new option is tested without a change here. Nothing listens on
port 1: an option that is checked only after a connection is found, because the line then names the port.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from odradek.cli.main import app, run
from odradek.cli.usage.usage_errors import odd_text

Capture = pytest.CaptureFixture[str]
DRAWS = 2
"""For each command, so that a new command does not change the inputs of the others: about ninety in each test."""
NOWHERE = "127.0.0.1:1"
KAFKA = ("-b", NOWHERE)
ZOOKEEPER = ("-z", NOWHERE)
TARGET = ("--to-latest",)
# A command line that would be valid, without the options that a draw adds. ``{file}`` exists, ``{folder}`` does not.
VALID: dict[str, tuple[str, ...]] = {
    "demo": (), "info": (), "check-history": ("{file}",), "serve": ("--data-dir", "{folder}", "--listen", NOWHERE),
    "monitor": ("--listen", "192.0.2.1:1", *KAFKA),  # without a token: no draw may start it
    "top": ("--once", *KAFKA), "mcp": ("--listen", "192.0.2.1:1", *KAFKA),
    "groups apply": ("5a3f09c1", "--execute", *KAFKA), "groups plans": (),
    "produce": ("t", *KAFKA, "--file", "{file}"), "consume": ("t", *KAFKA),
    "groups describe": ("g", *KAFKA), "groups list": KAFKA, "groups locate": ("g", *KAFKA),
    "groups members": ("g", *KAFKA), "groups state": ("g", *KAFKA), "groups delete": ("g", "--yes", *KAFKA),
    "groups delete-offsets": ("--group", "g", "--topic", "t", "--yes", *KAFKA),
    "groups reset": ("g", "--topic", "t", *TARGET, *KAFKA),
    "topics list": KAFKA, "topics create": ("t", *KAFKA), "topics describe": ("t", *KAFKA),
    "topics alter": ("t", "--partitions", "2", *KAFKA), "topics delete": ("t", "--yes", *KAFKA),
    "topics delete-records": ("--topic", "t", "--before", "3", "--yes", *KAFKA),
    "topics elect": ("--topic", "t", *KAFKA),
    "transactions list": KAFKA, "transactions describe": ("--transactional-id", "x", *KAFKA),
    "transactions describe-producers": ("--topic", "t", "--partition", "0", *KAFKA),
    "transactions find-hanging": ("--broker-id", "1", *KAFKA),
    "transactions abort": ("--topic", "t", "--partition", "0", "--start-offset", "5", "--yes", *KAFKA),
    "transactions force-terminate": ("--transactional-id", "x", "--yes", *KAFKA),
    "zookeeper groups": ZOOKEEPER, "zookeeper describe": ("--group", "g", *ZOOKEEPER),
    "zookeeper owners": ("--group", "g", *ZOOKEEPER),
    "zookeeper reset": ("--group", "g", "--topic", "t", *TARGET, *ZOOKEEPER, *KAFKA),
    "zookeeper export": ("--group", "g", *ZOOKEEPER), "zookeeper import": ("--file", "{file}", *ZOOKEEPER),
    "zookeeper migrate": ("--to", "kafka", "--group", "g", *ZOOKEEPER, *KAFKA),
    "zookeeper compare": ("--group", "g", *ZOOKEEPER, *KAFKA), "zookeeper delete": ("--group", "g", *ZOOKEEPER),
    "cluster format": ("--data-dir", "{folder}", "--node-id", "1"), "cluster describe": KAFKA,
    "cluster convert": ("--data-dir", "{folder}"), "cluster unregister": ("1", *KAFKA),
    "log check": ("--data-dir", "{folder}"), "log accept": ("t-0", "--data-dir", "{folder}", "--yes"),
    "metadata check": ("--data-dir", "{folder}"), "metadata repair": ("--data-dir", "{folder}", "--yes"),
    "metadata strays": ("--data-dir", "{folder}"), "offsets dump": KAFKA, "pipeline history": KAFKA,
    "pipeline ingest": ("--group", "g", "--topics", "t", "--output", "{folder}", *KAFKA),
    "pipeline adopt": ("--group", "g", "--output", "{folder}", *KAFKA),
    "pipeline verify": ("{folder}", "--group", "g", *KAFKA),
    "pipeline replay": ("--topics", "t", "--output", "{folder}", *KAFKA),
    "pipeline transform": ("--group", "g", "--topics", "t", "--to-topic", "u", "--checkpoint", "{folder}",
                           "--sql", "SELECT * FROM batch", *KAFKA),
}  # fmt: skip
# By the name of an option's value: texts that are wrong for every option with such a value.
WRONG_VALUES = {
    "N": ("x", "1.5", ""), "MS": ("x", "-1", "0", ""), "SECONDS": ("x", "0", ""),
    "EPOCH": ("x", "99999999999"), "MIN": ("x", "-1"),
    "FILE": ("/no/such/file",), "CSV": ("/no/such/file",), "FILE.html": ("/no/such/folder/page.html",),
    "HOST:PORT[,HOST:PORT]": ("nonsense", "host:99999", "host:x", "", "SSL://h:1"),
    "NAME=VALUE": ("nonsense", "=x"), "TOPIC[:0,1]": ("t:x", ":0", ""),
    "PnDTnHnMnS": ("tomorrow", "5"), "REGEX": ("(",),
}  # fmt: skip
# Options in which one of the texts above is right, or stands for another option's error.
RIGHT_THERE = {
    ("pipeline ingest", "--subscribe-pattern"),
    ("pipeline transform", "--subscribe-pattern"),
    ("pipeline history", "--conf"),
    ("transactions list", "REGEX"),
}


class WrongInput(NamedTuple):
    command: str
    arguments: tuple[str, ...]
    names: tuple[str, ...]
    """The line has to contain one of these texts."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    context = typer.Context(command)
    if not hasattr(command, "list_commands"):
        yield " ".join(path), command
        return
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


def options_of(command: str) -> list[Any]:
    found = [one for one in COMMANDS[command].params if one.param_type_name == "option"]
    return [one for one in found if one.name != "help" and not one.hidden]


def wrong_values(option: Any) -> tuple[str, ...]:
    metavar = option.metavar or ""
    if "|" in metavar and metavar == metavar.lower():
        return ("nonsense", "")
    values = WRONG_VALUES.get(metavar, ())
    if option.min is not None and metavar == "N":
        values = (*values, str(int(option.min) - 1))
    if option.max is not None:
        values = (*values, str(int(option.max) + 1))
    return values


def draw(dice: random.Random, command: str) -> WrongInput:
    valid, options = VALID[command], options_of(command)
    kind = dice.choice(["value", "value", "value", "value", "unknown", "missing value", "flag", "required", "surplus"])
    if kind == "value":
        found = [(one, value) for one in options for value in wrong_values(one)]
        found = [one for one in found if (command, one[0].opts[0]) not in RIGHT_THERE]
        found = [one for one in found if (command, one[0].metavar) not in RIGHT_THERE]
        if found:
            option, value = dice.choice(found)
            name = dice.choice([one for one in option.opts if one.startswith("--")] or option.opts)
            bare = [one.removeprefix("--") for one in option.opts if len(one) > 5]
            names = (*option.opts, *bare, *([value] if value else []))
            return WrongInput(command, (*valid, name, value), names)
    if kind == "missing value" and (valued := [one for one in options if not one.is_flag]):
        option = dice.choice(valued)
        return WrongInput(command, (*valid, option.opts[0]), tuple(option.opts))
    if kind == "flag" and (flags := [one for one in options if one.is_flag]):
        option = dice.choice(flags)
        return WrongInput(command, (*valid, f"{option.opts[0]}=1"), tuple(option.opts))
    if kind == "required" and "-b" in valid:
        at = valid.index("-b")
        return WrongInput(command, valid[:at] + valid[at + 2 :], ("--bootstrap-server", "-b"))
    if kind == "surplus" and not any(one.nargs == -1 for one in COMMANDS[command].params):
        return WrongInput(command, (*valid, "one", "surplus"), ("surplus", "one"))
    option = dice.choice(options)
    word = next((one for one in option.opts if one.startswith("--")), option.opts[0])
    at = dice.randrange(3, len(word)) if len(word) > 3 else len(word)
    typo = word[:at] + dice.choice("qzx") + word[at:]
    return WrongInput(command, (*valid, typo), (typo,))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_each_wrong_input_gives_one_line_that_names_the_thing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert VALID.keys() == COMMANDS.keys(), "a new command needs a valid line here"
    monkeypatch.chdir(tmp_path)
    for name in ("ODRADEK_BOOTSTRAP_SERVERS", "ODRADEK_COMMAND_CONFIG", "ODRADEK_ZOOKEEPER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").write_text("/consumers/g/offsets/t/0:5\n")
    faults = []
    for drawn in [draw(random.Random(f"{seed} {n} {one}"), one) for one in sorted(COMMANDS) for n in range(DRAWS)]:
        words = [word.format(file=tmp_path / "file", folder=tmp_path / "folder") for word in drawn.arguments]
        line = [*drawn.command.split(), *words]
        try:
            code: Any = run(line)
        except BaseException as error:
            code = repr(error)
        out, error_text = capsys.readouterr()
        named = any(name in error_text for name in drawn.names)
        if code not in (1, 2) or out or error_text.count("\n") != 1 or not named:
            faults.append(f"{' '.join(line)!r}: {code}, {out + error_text!r}, expected {drawn.names}")
    assert not faults, "\n" + "\n".join(faults)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [(("--on-bad", ""), "--on-bad is empty: give keep|fail|topic:NAME (see odradek pipeline ingest --help)"),
     (("--group", "billing\u200b"), "--group 'billing\\u200b': the name has an invisible character U+200B")],
)  # fmt: skip
def test_an_empty_or_invisible_text_is_named(more: tuple[str, str], says: str, capsys: Capture) -> None:
    valid = VALID["pipeline ingest"]
    assert run(["pipeline", "ingest", *(valid[2:] if "--group" in more else valid), *more]) == 2
    assert capsys.readouterr().err.startswith(f"odradek: {says}")


def test_a_file_in_place_of_a_topic_is_named(bootstrap: str, capsys: Capture) -> None:
    for command in (("consume", "./orders"), ("produce", "a b", "--file", __file__)):
        assert run([*command, "-b", bootstrap]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"topic {command[1]}: a name has only the letters a-z and A-Z" in line


def test_a_table_is_adopted_from_named_brokers(capsys: Capture) -> None:
    assert run(["pipeline", "adopt", *VALID["pipeline adopt"], "-b", ""]) == 2
    assert "-b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("consume", "t", *KAFKA, "--tail", "x"), "--tail 'x': expected a whole number (see odradek consume --help)"),
        (("consume", "t", *KAFKA, "--tail=0"), "--tail '0': expected a number of at least 1"),
        (
            ("consume", "t", *KAFKA, "--tail", "1.000"),
            "--tail '1.000': expected a whole number (see odradek consume --help)",
        ),
        (
            ("groups", "reset", "g", "--topic", "t", "--to-offset=1_000", *KAFKA),
            "--to-offset '1_000': expected a whole number (see odradek groups reset --help)",
        ),
        (
            ("topics", "list", *KAFKA, "--json=yes"),
            "--json takes no value: write --json alone",
        ),
        (("topics", *KAFKA), "no such option -b: a command is missing before it: "),
        (("groups", "describe", "--state", "--group", "g", *KAFKA), "--state: here, odradek groups state"),
        (("topics", "create", "t", *KAFKA, "--partitions", "0"), "--partitions '0': expected a number of at least 1"),
        (
            ("topics", "list", "-b", "http://localhost:9092"),
            "'http://localhost:9092': expected HOST:PORT without http://",
        ),
        (("topics", "list", "-b", "SSL://localhost:9092"), "set security.protocol=SSL"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(words: tuple[str, ...], says: str, capsys: Capture) -> None:
    assert run([*words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", [("metadata", "check"), ("metadata", "repair"), ("log", "check")])
def test_a_folder_that_is_no_data_directory_is_not_whole(
    command: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    assert run([*command, "--data-dir", str(tmp_path)]) == 2
    assert "is not the data directory of a broker: it has no meta.properties" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "accept"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("orders", " (did you mean orders-0?)"),
        ("order-1", " (did you mean orders-1?)"),
        ("quite-other", ": a partition's name is TOPIC-NUMBER, as its folder is named"),
        ("../orders-0", " (did you mean orders-0?)"),
    ],
)
def test_an_unknown_partition_of_a_data_directory_is_a_wrong_input(
    command: str, name: str, remedy: str, tmp_path: Path, capsys: Capture
) -> None:
    for number in range(2):
        (tmp_path / f"orders-{number}").mkdir()
        (tmp_path / f"orders-{number}" / "partition.metadata").write_text(
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
        )
    (tmp_path / "meta.properties").write_text("")
    assert run(["log", command, "--data-dir", str(tmp_path), name]) == 2
    assert capsys.readouterr().err == f"odradek: {tmp_path} has no partition {name}{remedy}\n"


def test_each_option_of_text_refuses_an_empty_value() -> None:
    """``--from "$START"`` of a script without START is no command without --from."""
    faults = []
    own = {"--group", "--key", "--bootstrap-server", "--cluster-name", "--path-group"}  # see below
    for command in sorted(COMMANDS):
        for option in options_of(command):
            if option.is_flag or own & set(option.opts):
                continue
            name = next((one for one in option.opts if one.startswith("--")), option.opts[0])
            for given in ([name, ""], [f"{name}="], [name, "", "--json"]):
                line = odd_text(COMMANDS[command], [*VALID[command], *given])
                if not line.startswith(f"{name} is empty: give "):
                    faults.append(f"{command} {given}: {line!r}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("topics", "list", "-b", ""), "-b / --bootstrap-server: it is empty: give HOST:PORT"),
        (("monitor", *KAFKA, "--cluster-name="), "--cluster-name: a cluster's name cannot be empty"),
        (("consume", "t", *KAFKA, "--group", ""), "--group: a group's name cannot be empty"),
        (("metadata", "strays", "--data-dir", "x", "--restore", ""), "--restore is empty: give NAME"),
        (("pipeline", "verify", "x", "--topic="), "--topic is empty: give NAME"),
        (("zookeeper", "groups", "-z", ""), "-z is empty: give HOST:PORT[,HOST:PORT][/CHROOT]"),
        (("topics", "create", "t", *KAFKA, "--config", ""), "--config is empty: give NAME=VALUE"),
    ],
)
def test_an_empty_value_is_named_in_one_line(words: tuple[str, ...], says: str, capsys: Capture) -> None:
    assert run(list(words)) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n"), error.startswith(f"odradek: {says}")) == ("", 1, True), error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("groups", "locate", "billing", "--group", "b\u0456lling", *KAFKA),
         "GROUP billing and --group 'b\\u0456lling': give one group"),
        (("consume", "orders", "--topic", "\u043erders", *KAFKA),
         "topic orders and --topic '\\u043erders': give one topic"),
        (("pipeline", "adopt", *VALID["pipeline adopt"], "--checkpoint", "a\nb"),
         "--checkpoint 'a\\nb': the path has a line end: remove it"),
        (("check-history", "a\nb"), "FILE... 'a\\nb': the path has a line end: remove it"),
        (("zookeeper", "groups", "-z", "a:x"), "-z 'a:x': 'a:x' is not HOST:PORT"),
        (("groups", "reset", *VALID["groups reset"], "--zookeeper-connect", "a:x"),
         "--zookeeper-connect 'a:x': 'a:x' is not HOST:PORT"),
    ],
)  # fmt: skip
def test_the_odd_one_of_two_names_is_seen_and_the_option_is_named(
    words: tuple[str, ...], says: str, capsys: Capture
) -> None:
    assert run(list(words)) == 2
    assert capsys.readouterr().err.startswith(f"odradek: {says}")


@pytest.mark.parametrize("path", ["a\nb", "a\r", "\\\n"])
def test_a_path_of_two_lines_is_shown_as_it_is(path: str, capsys: Capture) -> None:
    assert run(["topics", "list", *KAFKA, "--command-config", path]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"odradek: --command-config {path!r}: the path has a line end: remove it")
    assert error.count("\n") == 1


def test_an_interval_without_a_unit_is_shown_with_seconds(capsys: Capture) -> None:
    assert run(["monitor", "-b", "127.0.0.1:1", "--interval", "5"]) == 2
    assert capsys.readouterr().err == "odradek: --interval '5': expected a span such as 30s, 5min, 12h or 7d\n"
