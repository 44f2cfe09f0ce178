"""The command that a person may have meant by words in another order, joined words, or an option before the command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from typer import Context

_MOST = 4
"""The most commands that a line names."""
_OBJECTS = {"--group": "groups", "--topic": "topics", "--transactional-id": "transactions"}
"""Options of Kafka's tools that say which of the groups of commands is meant."""


def command_meant(root: object, given: Sequence[str], path: str, word: str) -> str:
    """Returns ``: write odradek …`` for a word that is no command, if other words of the line make a command with it.

    ``path``: the commands before the word, such as ``odradek topics``. ``describe groups``, ``groups-describe`` and
    ``topics orders describe`` are such words. Empty if there is no such command.
    """
    words = [one for one in given if one[:1] != "-"]
    after = words[words.index(word) + 1 :] if word in words else []
    parents = path.split()[1:]
    for group, name in _commands(root):
        if parents == [group] and after[:1] == [name]:
            return f": write odradek {group} {name} {word}"
        if parents == [name] and word == group:
            return f": write odradek {group} {name}"
        if parents:
            continue
        if _bare(word) in (
            _bare(group + name),
            _bare(name + group),
            _bare(group[:-1] + name),
            _bare(name + group[:-1]),
        ):
            return f": write odradek {group} {name}"
        if word == name and after[:1] in ([group], [group[:-1]]):
            return f": write odradek {group} {name}"
    named = (
        [] if parents else [f"odradek {group} {name}" for group, name in _commands(root) if _bare(name) == _bare(word)]
    )
    return f": here, {' or '.join(named[:_MOST])}" if named else ""


def option_before_command(root: object, given: Sequence[str], option: str) -> str:
    """Returns what to write for an option of the first word's place; empty if the line has no command.

    ``-b HOST:PORT groups describe`` has its command behind the option. ``--describe --topic orders`` is a command of
    Kafka's tools.
    """
    words = [one for one in given if one[:1] != "-"]
    paths = [*_commands(root), *((name,) for name in _single_commands(root))]
    for found in paths:
        if any(tuple(words[at : at + len(found)]) == found for at in range(len(words))):
            return f": write it after the command: odradek {' '.join(found)} {option}"
    name = option.partition("=")[0].removeprefix("--")
    groups = [group for group, one in _commands(root) if one == name]
    named = [group for one, group in _OBJECTS.items() if one in given and group in groups]
    return f": here, {' or '.join(f'odradek {one} {name}' for one in (named or groups)[:_MOST])}" if groups else ""


def _commands(root: Any) -> Iterator[tuple[str, str]]:
    """Yields the commands of two words."""
    for group in root.list_commands(Context(root)):
        command = root.get_command(Context(root), group)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(Context(command)):
                yield group, name


def _single_commands(root: Any) -> Iterator[str]:
    """Yields the commands of one word."""
    for name in root.list_commands(Context(root)):
        if not hasattr(root.get_command(Context(root), name), "list_commands"):
            yield name


def _bare(words: str) -> str:
    """Returns the letters of words, without ``kafka`` at the start, which the names of Kafka's tools have."""
    return re.sub(r"[^a-z]", "", words.casefold()).removeprefix("kafka")
