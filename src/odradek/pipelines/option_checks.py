"""Checks of what a user gives a pipeline: arguments of the right type, and options that repeat an argument."""

from __future__ import annotations

import collections.abc
import os
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from odradek.pipelines.values.arguments import wrong
from odradek.text.printable import shortened

_SET_BY_US = "the pipeline sets it"
OF_A_QUERY: Mapping[str, str] = {
    "kafka.bootstrap.servers": "the bootstrap servers",
    "kafka.group.id": "the group",
    "subscribe": "the topics",
    "subscribepattern": "the pattern",
    "assign": "the topics",
    "startingtimestamp": "the start: the group's offsets",
    "startingoffsetsbytimestamp": "the start: the group's offsets",
    "startingoffsets": "the start: the group's offsets",
    "maxbytespertrigger": "the batch size",
    "includeheaders": "whether the headers are read",
    "columns": "the pipeline reads all columns that it needs",
    "progressto": _SET_BY_US,
    "committedbytable": _SET_BY_US,
    "grouplook": _SET_BY_US,
    "lossesto": _SET_BY_US,
    "topicids": _SET_BY_US,
}
"""By the name of a source's option in lower case: the argument that already says the same."""
OF_A_REPLAY: Mapping[str, str] = {
    **{name: what for name, what in OF_A_QUERY.items() if name not in ("kafka.group.id", "maxbytespertrigger")},
    "startingtimestamp": "the start of the ranges",
    "startingoffsetsbytimestamp": "the start of the ranges",
    "startingoffsets": "the start of the ranges",
    "endingtimestamp": "the end of the ranges",
    "endingoffsetsbytimestamp": "the end of the ranges",
    "endingoffsets": "the end of the ranges",
}
OF_A_LINE: Mapping[str, str] = {"kafka.auto.offset.reset": "--from", "maxoffsetspertrigger": "--max-offsets"}
_ALLOWED = {("startingoffsets", "committed"), ("startingoffsets", "zookeeper")}


def check_options(options: Mapping[str, str], arguments: Mapping[str, str], given: Mapping[str, object]) -> None:
    """Raises ConfigError for an option that says something else than an argument.

    ``arguments``: ``OF_A_QUERY`` or ``OF_A_REPLAY``. ``given``: the values of arguments by the option's name in lower
    case; an option with the same value is accepted.
    """
    for name, value in options.items():
        lowered = name.lower()
        said = arguments.get(lowered)
        if said is None or (lowered, value.strip().lower()) in _ALLOWED:
            continue
        if lowered in given and str(given[lowered]).strip() == value.strip():
            continue
        why = said if said.startswith("the pipeline") else f"an argument says {said} already"
        raise wrong("options", f" {name}={value}: {why}; leave the option out")


def check_type(name: str, value: object, hint: object) -> None:
    """Raises ArgumentError for a value of another type than its argument has. ``name``: that of the argument."""
    if not _fits(value, hint):
        raise wrong(name, f": expected {_shown(hint)}, not {value!r}")


def _fits(value: object, hint: object) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(_fits(value, part) for part in parts)
    if hint is type(None):
        return value is None
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(one, parts[1]) for key, one in value.items()
        )
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, Sequence | set | frozenset) and all(_fits(one, parts[0]) for one in value)
    if origin is collections.abc.Callable:
        return True  # a function can be named, and its own check knows how
    if hint is Path:
        return isinstance(value, os.PathLike)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


_WORDS = {str: "text", Path: "a path", bool: "True or False", int: "a whole number", type(None): "None"}


def _shown(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(_shown(part) for part in parts))
    if origin is not None and issubclass(origin, Mapping):
        return "a mapping"
    if origin is not None and issubclass(origin, Sequence):
        return "a list of texts"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def check_local_folder(name: str, path: Path) -> None:
    """Raises ArgumentError if a folder of this machine can neither be used nor be created. Creates nothing. ``name``:
    that of the argument."""
    for known in (path, *path.parents):
        try:
            exists = known.exists() or known.is_symlink()
        except OSError as error:
            raise wrong(name, f" {path} cannot be used: {error.strerror}. Choose another place") from error
        if not exists:
            continue
        if not known.is_dir():
            raise wrong(name, f" {path} cannot be used: {known} is not a folder. Choose another place")
        if not os.access(known, os.W_OK | os.X_OK):
            raise wrong(
                name,
                f" {path} cannot be used: {known} is not writable for this user. Give the right (chown, chmod), or "
                "choose another place",
            )
        return


def check_place(name: str, text: str) -> None:
    """Raises ArgumentError for a location that is empty, or JSON: the value of another option. ``name``: that of the
    argument."""
    if not text.strip():
        raise wrong(name, " is empty: give a directory, or a URI that Spark can write to")
    if text.lstrip()[0] in "{[" and text.rstrip()[-1] in "}]":
        raise wrong(name, f" {shortened(text)}: this is JSON, and not a directory or a URI")


def partition_terms(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns columns and transforms of columns; a text is split at its commas outside of parentheses. Raises
    ArgumentError for one that is named twice (case is ignored, as in Spark)."""
    found = [name.strip() for name in re.split(r",(?![^()]*\))", given)] if isinstance(given, str) else list(given)
    found = [name for name in found if name]
    for at, name in enumerate(found):
        if name.lower() in (other.lower() for other in found[:at]):
            raise wrong("partition_by", f" {', '.join(found)}: column {name} is named twice")
    return tuple(found)
