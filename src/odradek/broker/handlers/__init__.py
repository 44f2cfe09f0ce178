"""One file per API, `kNN_name` with NN its key. A new API is a new file here.

Each has ``VERSIONS``, the oldest and the newest version that it serves, and ``handle(broker, context, message)``, which
returns a mapping for ``wire.schemas.encode``, ready bytes, a list of chunks, ``None`` for "no reply", a Deferred of one
of these, or a generator that returns one of them. What is advertised is what these files say and nothing else.

What else the router has to know of an API, which knows none itself:

* ``ADVERTISED_OLDEST``: a version that is advertised though it is not served.
* ``IS_FREQUENT``: producers and consumers use the API, so its file is loaded while the broker has nothing to do.
* ``ANSWERS_ANY_VERSION``: a request in a version that is not served is answered in the oldest; its message is ``None``.
* ``KEEPS_REQUESTS``: clients ask the same long question again and again, so its message is kept.

A message is an instance of kio's class for the version asked in. Its type is the class of the newest version, in some
files with fields that only older ones have. Fields that some versions lack are read where the version is known.

Files are loaded with the first request that needs them. These lines, which stand before the first function, are
therefore read from the source.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from typing import NamedTuple

_FILE = re.compile(r"(k\d\d_\w+)\.pyc?")
_LINES = re.compile(rb"\n([A-Z_]+) = (.+)")
_NUMBER = re.compile(rb"\d+")


class Served(NamedTuple):
    """An API that this broker serves, as its file says."""

    name: str
    key: int
    versions: tuple[int, int]
    advertised_oldest: int
    is_frequent: bool
    answers_any_version: bool
    keeps_requests: bool


@cache
def served() -> tuple[Served, ...]:
    """All APIs, by key."""
    names = {found[1] for entry in os.listdir(__path__[0]) if (found := _FILE.fullmatch(entry))}
    return tuple(map(_read, sorted(names)))


def _read(name: str) -> Served:
    try:
        # As it is, and no further than to the first function: all files have to be read before the first request.
        with open(os.path.join(__path__[0], f"{name}.py"), "rb", buffering=0) as source:
            said = dict(_LINES.findall(source.readall().partition(b"\ndef ")[0]))
    except OSError:  # an installation without sources
        module = import_module(f"{__name__}.{name}")
        said = {line.encode(): str(value).encode() for line, value in vars(module).items() if line.isupper()}
    oldest, newest = map(int, _NUMBER.findall(said[b"VERSIONS"]))
    return Served(
        name,
        int(name[1:3]),
        (oldest, newest),
        int(said.get(b"ADVERTISED_OLDEST", oldest)),
        is_frequent=b"IS_FREQUENT" in said,
        answers_any_version=b"ANSWERS_ANY_VERSION" in said,
        keeps_requests=b"KEEPS_REQUESTS" in said,
    )


def served_versions() -> dict[int, tuple[int, int]]:
    """API key → oldest and newest version."""
    return {api.key: api.versions for api in served()}
