"""Options as they are copied from web pages and typed in a hurry: one line that names the word and the right one.

The parser reads ``-bootstrap-server`` as ``-b ootstrap-server``, and ``–group`` as an argument.
"""

from __future__ import annotations

import pytest
from test_wrong_inputs import COMMANDS, NOWHERE, VALID, options_of

from odradek.cli.main import run
from odradek.cli.usage.odd_words import _is_odd
from odradek.cli.usage.usage_errors import mistyped_option
from odradek.client.config import parse_address, parse_addresses
from odradek.core.errors import ConfigError

Capture = pytest.CaptureFixture[str]
NOT_RUN = ("demo", "info", "monitor", "serve")
NAMED = [
    (command, max(option.opts, key=len), option.is_flag)
    for command in VALID if command not in NOT_RUN
    for option in options_of(command) if "completion" not in option.name and max(option.opts, key=len)[:2] == "--"
]  # fmt: skip


def forms(option: str) -> list[tuple[str, str]]:
    """Returns wrong forms of an option, and what is wrong."""
    bare = option[2:]
    return [
        (f"-{bare}", "has one dash"),
        (f"-{bare}=3", "has one dash"),
        (f"\u2013{bare}", "has another dash, U+2013"),
        (f"\u2014{bare}", "has another dash, U+2014"),
        (f"\u2212\u2212{bare}", "has another dash, U+2212"),
    ]


@pytest.mark.parametrize("command", [one for one in VALID if one not in NOT_RUN])
def test_an_option_with_a_wrong_dash_or_equals_sign_is_named(command: str) -> None:
    for _, option, is_flag in (one for one in NAMED if one[0] == command):
        end = f" (see odradek {command} --help)"
        for wrong, what in forms(option):
            words = [*VALID[command], wrong, *([] if is_flag else ["3"])]
            line = mistyped_option(COMMANDS[command], words).replace("(see odradek", f"(see odradek {command}")
            assert line == f"{wrong.partition('=')[0]} {what}: write {option}{end}"
            assert _is_odd(wrong)
        if not is_flag:
            line = mistyped_option(COMMANDS[command], [*VALID[command], option, "=", "3"])
            assert line.startswith(f"a = with spaces stands after {option}: write {option} VALUE (see odradek")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("pipeline verify d --group g -bootstrap-server h:1",
         "-bootstrap-server has one dash: write --bootstrap-server (see odradek pipeline verify --help)"),
        ("groups list \u2013json",
         "\u2013json has another dash, U+2013: write --json (see odradek groups list --help)"),
        ("produce t --file = x",
         "a = with spaces stands after --file: write --file VALUE (see odradek produce --help)"),
    ],
)  # fmt: skip
def test_the_command_prints_the_line(words: str, error: str, capsys: Capture) -> None:
    assert run([*words.split(), "-b", NOWHERE]) == 2
    assert capsys.readouterr().err == f"odradek: {error}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["groups", "describe", "g", "-b127.0.0.1:1"],
        ["groups", "describe", "--group", "-group", "-b", NOWHERE],
        ["groups", "describe", "--group", "\u2013g", "-b", NOWHERE],
        ["groups", "describe", "-b", NOWHERE, "--", "-group"],
        ["consume", "t", "--grep", "=", "-b", NOWHERE],
    ],
)
def test_values_that_look_like_options_are_values(words: list[str], capsys: Capture) -> None:
    code = run(words)
    error = capsys.readouterr().err
    assert "dash" not in error
    if words[0] == "groups":
        assert (code, f"cannot reach {NOWHERE}" in error) == (1, True)
    else:
        assert (code, "a = with spaces" in error) == (2, True), "--grep== gives a value that is an equals sign"


@pytest.mark.parametrize("quotes", ["\u201c\u201d", "\u201e\u201c", "\u2018\u2019", "\u00ab\u00bb"])
def test_quotation_marks_of_a_text_program_make_no_group(quotes: str, capsys: Capture) -> None:
    name = f"{quotes[0]}orders{quotes[1]}"
    line = ["groups", "reset", name, "--topic", "t", "--to-latest", "--execute", "-b", NOWHERE]
    for words in (["consume", "t", "--group", name, "-b", NOWHERE], line):
        run(words)
        error = capsys.readouterr().err
        assert "quotation marks of a text program, U+" in error or words is line, words


@pytest.mark.parametrize(
    "text", ["h:9092 h2:9092", "h:1;h2:2", "h/x:1", "a@h:1", "h:9092:9092", "http:h:1", "h?x:1", "h 1:1"]
)
def test_several_addresses_need_commas(text: str) -> None:
    """A client looked up the host ``h:9092 h2``."""
    with pytest.raises(ConfigError, match=r"^bootstrap server .*: expected HOST:PORT, and commas between several$"):
        parse_address(text)


def test_addresses_of_every_form_are_read() -> None:
    found = parse_addresses("h:1,[::1]:2, ::1:3 ,[fe80::1%eth0]:4,h-1.x_y:5,127.0.0.1:6,b\u00fccher:7")
    assert [one.host for one in found] == ["h", "::1", "::1", "fe80::1%eth0", "h-1.x_y", "127.0.0.1", "b\u00fccher"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("serve --data-dir", "--data-dir needs a value: --data-dir DIR (see odradek serve --help)"),
        ("log accept t-0 --data", "--data needs a value: --data DIR (see odradek log accept --help)"),
        ("groups list -b", "-b needs a value: -b HOST:PORT[,HOST:PORT] (see odradek groups list --help)"),
        ("topics list --timeout", "--timeout needs a value: --timeout MS (see"),
        (
            "serve --delete-config a b",
            "unexpected argument b: --delete-config takes one value; quote a value with spaces",
        ),
        (
            "zookeeper compare --group g --path-topic id: int",
            "unexpected argument int: --group names the groups; quote",
        ),
        (
            "monitor -b a:1 --allowed-host:kafka",
            "no such option --allowed-host:kafka: write --allowed-host VALUE, with",
        ),
        ("serve --data-dir=d b", "unexpected argument b: each value follows its option (see odradek serve"),
        ("serve --data-dir d b c", "unexpected argument b c: --data-dir takes one value;"),
        ("serve --listen 127.0.0.1:0", "--data-dir DIR is missing, and no --config-file names log.dirs"),
    ],
)
def test_a_value_that_is_missing_or_stands_twice_is_named(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"odradek: {says}")
    assert error.count("\n") == 1
