"""The handlers: one file per API, `kNN_name`, where NN is the API key. A new API is a new file here.

The docstring of a file lists what each version changes in the version before it.

Each file has ``VERSIONS``, the oldest and the newest version that it serves, and ``handle(broker, context, message)``.
``handle`` returns a mapping for ``wire.schemas.encode``, encoded bytes, a list of chunks, ``None`` for "no reply", a
Deferred (a one-shot promise) of one of these, or a generator that returns one of them. ``api.BrokerServices`` lists the
parts of the broker that handlers may use. ``context.throttle(ms)`` mutes a client. The broker advertises the APIs
of these files and no others.

The router has no code for a single API. A file sets these names where its API needs special treatment:

* ``ADVERTISED_OLDEST``: the oldest advertised version, where it is older than the oldest served version.
* ``IS_FREQUENT``: producers and consumers use the API, so the broker loads its file while it is idle.
* ``REPLIES_TO_ANY_VERSION``: the reply to a request in a version that is not served has the oldest version. The handler
  gets ``None`` as the message.
* ``WAITS_FOR_OTHERS``: the reply may wait for requests of other clients, for minutes. The elements of a waiting request
  do not count towards the limit of all requests (``broker/limits/request_elements``); the handler keeps few of them.
* ``LISTENERS``: the kinds of listeners that serve the API. Without it, the API is for clients: ``("client",)``. An API
  of controllers names ``"controller"``; other listeners do not advertise it, and for them it does not exist. Where
  controllers serve an API in another way, the file has ``handle_at_controller``. A node with both roles has
  listeners of both kinds. As in Kafka, brokers send each other requests at listeners of clients: the handler asks for
  ClusterAction.
* ``KEEPS_REQUESTS``: clients repeat the same long request, so the router keeps its decoded message.

A message is an instance of kio's class for the version of the request. Its type annotation is the class of the newest
version; some files add the fields that only older versions have. Handlers check the version before they read a field
that some versions lack.

The first request to an API loads its file. Therefore this module reads the names above from the source text. They are
literals, each in one line before the first function.
"""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from odradek.broker.settings.listener import AT_CONTROLLER, CLIENT

KINDS = (CLIENT, AT_CONTROLLER)
"""The kinds of listeners: those of a broker, which serve an API unless its file names others, and of a controller."""
_FILE = re.compile(r"(k\d\d_\w+)\.pyc?")
_TYPES: dict[str, type] = {
    "VERSIONS": tuple, "LISTENERS": tuple, "ADVERTISED_OLDEST": int, "IS_FREQUENT": bool,
    "REPLIES_TO_ANY_VERSION": bool, "KEEPS_REQUESTS": bool, "WAITS_FOR_OTHERS": bool,
}  # fmt: skip
"""The settings of a handler file."""
_SETTING = re.compile(rf"^({'|'.join(_TYPES)}) = (.+)$".encode(), re.MULTILINE)


class HandlerFile(NamedTuple):
    """An API that this broker serves, with the settings from its file."""

    name: str
    key: int
    versions: tuple[int, int]
    advertised_oldest: int
    is_frequent: bool
    replies_to_any_version: bool
    keeps_requests: bool
    waits_for_others: bool
    listeners: tuple[str, ...]


@cache
def handler_files(listener: str = "") -> tuple[HandlerFile, ...]:
    """Returns the APIs that this kind of listener serves, or all, in the order of their keys."""
    if listener:
        return tuple(api for api in handler_files() if listener in api.listeners)
    names = {match[1] for entry in os.listdir(__path__[0]) if (match := _FILE.fullmatch(entry))}
    return tuple(map(_read, sorted(names)))


def _read(name: str) -> HandlerFile:
    try:
        # Unbuffered, and parsed only up to the first function: the broker reads all files before the first request.
        with open(os.path.join(__path__[0], f"{name}.py"), "rb", buffering=0) as source:
            lines = _SETTING.findall(source.readall().partition(b"\ndef ")[0])
        settings = {key.decode(): _literal(text) for key, text in lines}
    except (ValueError, SyntaxError):
        raise ValueError(f"handlers/{name}.py: each setting has to be a literal in one line") from None
    except OSError:  # an installation without sources
        module = vars(import_module(f"{__name__}.{name}"))
        settings = {key: module[key] for key in _TYPES if key in module}
    for key, value in settings.items():
        if type(value) is not _TYPES[key]:
            raise ValueError(f"handlers/{name}.py: {key} = {value!r}: write a {_TYPES[key].__name__}")
    listeners = settings.get("LISTENERS", (CLIENT,))
    if not listeners or not set(listeners) <= set(KINDS):
        raise ValueError(f"handlers/{name}.py: LISTENERS = {listeners!r}: choose from {', '.join(KINDS)}")
    oldest, newest = settings["VERSIONS"]
    return HandlerFile(
        name,
        int(name[1:3]),
        (oldest, newest),
        settings.get("ADVERTISED_OLDEST", oldest),
        is_frequent=settings.get("IS_FREQUENT", False),
        replies_to_any_version=settings.get("REPLIES_TO_ANY_VERSION", False),
        keeps_requests=settings.get("KEEPS_REQUESTS", False),
        waits_for_others=settings.get("WAITS_FOR_OTHERS", False),
        listeners=listeners,
    )


@cache
def _literal(text: bytes) -> Any:
    return ast.literal_eval(text.decode())


def served_versions() -> dict[int, tuple[int, int]]:
    """Returns API key → oldest and newest version, for clients."""
    return {api.key: api.versions for api in handler_files(CLIENT)}
