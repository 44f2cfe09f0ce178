"""One file per API, `kNN_name` with NN its key. A new API is a new file here.

Each has ``VERSIONS``, the oldest and the newest version that it serves, and ``handle(broker, context, message)``, which
returns a mapping for ``wire.schemas.encode``, ready bytes, a list of chunks, ``None`` for "no reply", a Deferred of one
of these, or a generator that returns one of them. What is advertised is what these files say and nothing else.

* ``ADVERTISED_OLDEST``: a version that is advertised though it is not served.
* ``IS_FREQUENT``: producers and consumers use the API, so its file is loaded while the broker has nothing to do.

Other files are loaded with the first request that needs them. These lines are therefore read from the source.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from typing import NamedTuple

_FILE = re.compile(r"(k\d\d_\w+)\.pyc?")
_LINES = re.compile(r"^(VERSIONS|ADVERTISED_OLDEST|IS_FREQUENT) = (.+)$", re.MULTILINE)
_NUMBER = re.compile(r"\d+")


class Served(NamedTuple):
    """An API that this broker serves, as its file says."""

    name: str
    key: int
    versions: tuple[int, int]
    advertised_oldest: int
    is_frequent: bool


@cache
def served() -> tuple[Served, ...]:
    """All APIs, by key."""
    names = {found[1] for entry in os.listdir(__path__[0]) if (found := _FILE.fullmatch(entry))}
    return tuple(map(_read, sorted(names)))


def _read(name: str) -> Served:
    try:
        with open(os.path.join(__path__[0], f"{name}.py"), encoding="utf-8") as source:
            said = dict(_LINES.findall(source.read()))
    except OSError:  # an installation without sources
        module = import_module(f"{__name__}.{name}")
        said = {line: str(getattr(module, line)) for line in ("VERSIONS", "ADVERTISED_OLDEST") if hasattr(module, line)}
        said |= {"IS_FREQUENT": "True"} if getattr(module, "IS_FREQUENT", False) else {}
    oldest, newest = map(int, _NUMBER.findall(said["VERSIONS"]))
    return Served(
        name, int(name[1:3]), (oldest, newest), int(said.get("ADVERTISED_OLDEST", oldest)), "IS_FREQUENT" in said
    )


def served_versions() -> dict[int, tuple[int, int]]:
    """API key → oldest and newest version."""
    return {api.key: api.versions for api in served()}
