"""What a word of the command line may be that stands where no argument is expected, as the end of an error line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"[\w.\[\]:-]+:\d+")
_TOPIC = re.compile(r"[\w.-]+(:\d+(,\d+)*)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_SPAN = re.compile(r"-?\d+(\.\d+)?(ms|s|min|m|h|d|w)")
_NUMBER = re.compile(r"-?\d+")
_FILE = re.compile(r".*\.(avsc|csv|html|json|parquet|properties|txt)")
_NEVER_MEANT = ("--timeout", "--controller-id")
"""Options of numbers that nearly no command line has: a surplus number is a second argument."""
_NUMBERS = ("EPOCH", "MIN", "MS", "N", "OFFSET", "SECONDS", "SHARE")
_MOST_OPTIONS = 3
"""The most options that a line names."""
_KIND_ADDRESS = "an address"
_OTHERS = {
    "odradek topics list": "odradek topics describe {} shows a topic",
    "odradek groups list": "odradek groups describe {} shows a group",
    "odradek zookeeper groups": "it lists all groups; odradek zookeeper describe {} shows one",
    "odradek transactions list": "odradek transactions describe {} shows the transaction of an id",
    "odradek cluster describe": "it shows all nodes: leave the word out",
}
"""Commands that list everything, and the one that shows what a name names."""


def meant_by(extra: str, command: Any, path: str, given: Sequence[str]) -> str:
    """Returns what unexpected words may be, as the end of a line; never empty.

    ``extra``: the words, with spaces between. ``path``: the words of the command. ``given``: the whole command line."""
    first = extra.partition(" ")[0]
    if extra.casefold() == "help":
        return ": here, --help"
    before, value = _option_with_a_value_before(command, given, extra)
    is_list = bool(before) and _ADDRESS.fullmatch(value) is not None
    if path in _OTHERS and not _ADDRESS.fullmatch(first) and _TOPIC.fullmatch(first):
        return f": {_OTHERS[path].format(first)}"
    named = {word.partition("=")[0] for word in given}
    topics = _option_for_topics(command, named)
    kind, options = _kind_and_options(first, _open_options(command, named), may_be_topic=bool(topics))
    if is_list and kind == _KIND_ADDRESS and not options:
        return f": {before} takes addresses with commas between them: {before} {value},{first}"
    if options and not (before and not is_list and _NUMBER.fullmatch(first)):
        return f": is it {kind}? Here, {' or '.join(f'{one} {first}' for one in options[:_MOST_OPTIONS])}"
    has_group = any("--group" in one.opts for one in command.params)
    if not kind and topics and ("--group" in named or not has_group):
        return f": is it a topic? Here, {topics} {first}"
    if not kind and has_group and "--group" not in named and not arguments_of(command):
        return f": is it a group? Here, --group {first}"
    if before and not is_list:
        return f": {before} takes one value; quote a value with spaces"
    if own := arguments_of(command):
        return f": the command takes one {own[0].metavar}, and each other value follows its option"
    return ": each value follows its option"


def arguments_of(command: Any) -> list[Any]:
    """Returns the arguments of a command that stand without an option."""
    return [one for one in command.params if one.param_type_name == "argument"]


def options_with_values(command: Any) -> set[str]:
    """Returns the names of the options that take a value."""
    return {name for one in command.params if one.param_type_name == "option" and not one.is_flag for name in one.opts}


def _kind_and_options(word: str, options: Sequence[object], *, may_be_topic: bool) -> tuple[str, list[str]]:
    """Returns what a word is by its form, and the options that take such a value; an empty text for a plain name.

    ``may_be_topic``: the command line lacks a topic, so a plain name is one, although a folder has the same name."""

    def of(*kinds: str) -> list[str]:
        return _names(options, lambda metavar: any(one in kinds for one in metavar.split("|")))

    if _TIME.fullmatch(word):
        return "a time", of("TIME")
    if _SPAN.fullmatch(word):
        return "a span of time", of("SPAN", "10s")
    if _ADDRESS.fullmatch(word):
        addresses = _names(options, lambda metavar: metavar.startswith("HOST:PORT"))
        return _KIND_ADDRESS, sorted(addresses, key=lambda one: one != "-b")[:1]
    if _NUMBER.fullmatch(word):
        return "a number", [one for one in of(*_NUMBERS) if one not in _NEVER_MEANT]
    if choices := _names(options, lambda metavar: "|" in metavar and word.lower() in metavar.split("|")):
        return "a value of an option", choices
    if may_be_topic and _TOPIC.fullmatch(word) and not _FILE.fullmatch(word):
        return "", []
    if _FILE.fullmatch(word) or Path(word).is_file():
        return "a file", of(*(["FILE.html"] if word.endswith(".html") else ["FILE", "CSV"]))
    if "/" in word or Path(word).is_dir():
        return "a folder", of("DIR", "URI")
    return "", []


def _open_options(command: Any, named: set[str]) -> list[Any]:
    """Returns the options with a value that the command line lacks or may repeat. ``named``: the options it has."""
    options = [one for one in command.params if one.param_type_name == "option" and not one.is_flag and not one.hidden]
    return [one for one in options if one.multiple or not named & set(one.opts)]


def _names(options: Iterable[Any], takes: Callable[[str], bool]) -> list[str]:
    return [one.opts[0] for one in options if takes(str(one.metavar or ""))]


def _option_for_topics(command: Any, named: set[str]) -> str:
    """Returns the command's option for topics if the command line lacks it; otherwise an empty text."""
    known = [option for one in command.params for option in one.opts if option in ("--topics", "--topic")]
    return known[0] if known and not named & set(known) else ""


def _option_with_a_value_before(command: object, given: Sequence[str], extra: str) -> tuple[str, str]:
    """Returns the option whose value stands before the unexpected words, and the value. The words may be a second
    value, or a part of one that a shell has split at a space. Empty texts without one."""
    words = list(given)
    at = next((at for at, word in enumerate(words) if extra == word or extra.startswith(f"{word} ")), 0)
    is_value = at > 1 and words[at - 2] in options_with_values(command)
    return (words[at - 2], words[at - 1]) if is_value else ("", "")
