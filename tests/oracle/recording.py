"""Scenarios that send requests to a broker, and the normalised trace of its replies.

A scenario is a function of one ``Run``; a suite is a module of scenarios (``scenarios_<suite>.py``). ``record.py`` runs
a suite against Apache Kafka and stores the trace; a test runs it against odradek and compares.

Values that may differ between two runs are replaced: names and ids by symbols (``<topic a>``, ``<id 1>``), times by
``<now>``, error messages by ``<text>``. So a comparison shows whether there is a message, and ignores its words. Record
bytes are replaced by their length and checksum, so equal traces mean equal bytes. Bytes that contain names or ids, or
are marked as ``Raw``, are shown completely, with symbols in place of names, ids and times.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from support.brokers import Wire

from odradek.core.errors import ErrorCode
from odradek.wire import frames, schemas

TRACES = Path(__file__).resolve().parent / "traces"
_LONG = 1000  # characters: a longer text is shown as its length and checksum
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TELLING = 8  # bytes: a name of at least this length does not occur in other bytes by chance
CLOSED = "<connection closed>"
UNANSWERED = "<no answer>"
_NOW_FROM_MS = 1_700_000_000_000  # scenarios use earlier timestamps; later ones are from a clock
_NOW_BELOW_MS = 2_100_000_000_000  # eight ``Raw`` bytes with a larger value may be several fields: 00 00 01 ff …
_DISK = ("total_bytes", "usable_bytes")
_COUNTERS = ("finalized_features_epoch",)
_OFFSETS_TOPIC = "__consumer_offsets"
_NO_ID = uuid.UUID(int=0)
_TEXTS = ("error_message", "batch_index_error_message", "documentation")
_PLACES = {"host": "<host>", "port": "<port>", "cluster_id": "<cluster>"}

Scenario = Callable[["Run"], None]
Step = dict[str, Any]


class Varying(bytes):
    """Bytes of a request with values that differ between runs (a producer id): the trace shows their length."""


class Raw(bytes):
    """Bytes that the trace shows one by one, with symbols in place of names, ids and times."""


class Pending:
    """A request in flight. ``receive`` waits for its reply and adds it to the step of the request in the trace."""

    def __init__(self, run: Run, step: Step, wire: Wire, key: tuple[int, int, int]) -> None:
        self._run, self._step, self._wire, self._key = run, step, wire, key

    def receive(self) -> Any:
        api_key, version, correlation_id = self._key
        try:
            frame = self._wire.receive_frame()
        except ConnectionError:
            self._step["reply"] = CLOSED
            self._run.disconnect(self._step["client"])
            return None
        assert frame[:4] == correlation_id.to_bytes(4, "big"), "a reply to another request"
        try:
            _, reply = frames.decode_reply(api_key, version, frame)
        except ValueError:  # the schemas have no time before 1970, which means "never" in a few replies
            reply = Raw(frame[4:])
        self._step["reply"] = reply
        return reply

    def is_answered(self, within_s: float) -> bool:
        return self._wire.has_reply(within_s)

    def receive_if_answered(self, within_s: float = 0.5) -> Any:
        """Returns the reply if it arrives in time. Otherwise returns None, and the trace shows that there is no reply.

        The connection must have no other request in flight.
        """
        if not self.is_answered(within_s):
            self._step["reply"] = UNANSWERED
            return None
        return self.receive()


class Run:
    """One run of a scenario against one broker. Clients are connections, opened on first use."""

    def __init__(
        self,
        bootstrap: str,
        pass_ms: Callable[[int], object] | None = None,
        restart: Callable[[], object] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._pass_ms = pass_ms or (lambda ms: time.sleep(ms / 1000))
        self._restart = restart
        self._wires: dict[str, Wire] = {}
        self._steps: list[Step] = []
        self._symbols: dict[str, str] = {}
        self._numbers: dict[int, str] = {}
        self._raw_symbols: dict[bytes, str] = {}
        self._tag = uuid.uuid4().hex[:10]

    # --- names --------------------------------------------------------------------------------------------------

    def fresh(self, kind: str, label: str = "a") -> str:
        """An unused name, the same in the whole run; ``<kind label>`` in the trace."""
        name = f"{kind}{label}-{self._tag}"
        self._symbols[name] = f"<{kind} {label}>"
        return name

    def topic(self, label: str = "a") -> str:
        return self.fresh("topic", label)

    def name_value(self, value: str | uuid.UUID, symbol: str) -> None:
        """Shows ``value`` (a member id, a topic id) as ``<symbol>`` in the whole trace."""
        self._symbols[str(value)] = f"<{symbol}>"

    def tag(self) -> str:
        """The suffix of every name of this run; ``<tag>`` in the trace."""
        self.name_value(self._tag, "tag")
        return self._tag

    def name_bytes(self, value: bytes, symbol: str) -> None:
        """Shows these bytes as ``<symbol>``, also within ``Raw`` bytes."""
        self._raw_symbols[value] = f"<{symbol}>"

    def name_number(self, value: int, symbol: str) -> None:
        """Shows an ``…_id`` field equal to ``value`` (of a session, a producer) as ``<symbol>`` in the whole trace."""
        self._numbers[value] = f"<{symbol}>"

    def symbol_of_number(self, value: int) -> str | None:
        """The symbol that ``name_number`` gave to a number."""
        return self._numbers.get(value)

    def has_number_symbol(self, symbol: str) -> bool:
        return f"<{symbol}>" in self._numbers.values()

    # --- requests -----------------------------------------------------------------------------------------------

    def _wire(self, client: str) -> Wire:
        if client not in self._wires:
            self._wires[client] = Wire(self._bootstrap, client_id=client)
        return self._wires[client]

    def disconnect(self, client: str) -> None:
        """Closes a client's connection. Its next request opens another one."""
        wire = self._wires.pop(client, None)
        if wire is not None:
            wire.socket.close()

    def send(
        self,
        api_key: int,
        version: int,
        message: Mapping[str, Any],
        *,
        client: str = "c",
        unordered: Sequence[str] = (),
    ) -> Pending:
        """Sends a request whose reply is received later. Lists in ``unordered`` have no fixed order."""
        step: Step = {"client": client, "api": schemas.api_name(api_key), "version": version, "request": message}
        if unordered:
            step["unordered"] = list(unordered)
        self._steps.append(step)
        wire = self._wire(client)
        return Pending(self, step, wire, (api_key, version, wire.send(api_key, version, message)))

    def call(
        self,
        api_key: int,
        version: int,
        message: Mapping[str, Any],
        *,
        client: str = "c",
        unordered: Sequence[str] = (),
    ) -> Any:
        """Sends a request and waits for its reply. Both are in the trace."""
        return self.send(api_key, version, message, client=client, unordered=unordered).receive()

    def send_without_reply(self, api_key: int, version: int, message: Mapping[str, Any], *, client: str = "c") -> None:
        """Sends a request that gets no reply (acks=0)."""
        self.send(api_key, version, message, client=client)

    def quietly(self, api_key: int, version: int, message: Mapping[str, Any], *, client: str = "quiet") -> Any:
        """Sends a request that is not in the trace: for preparation, or to wait for slow changes."""
        return self._wire(client).call(api_key, version, message)

    def until(
        self, api_key: int, version: int, message: Mapping[str, Any], ready: Callable[[Any], bool], within_s: float = 15
    ) -> Any:
        """Repeats a request, not in the trace, until ``ready`` returns true for the reply. Returns this reply."""
        deadline = time.monotonic() + within_s
        while True:
            reply: Any = None
            try:
                reply = self.quietly(api_key, version, message)
                if ready(reply):
                    return reply
            except ConnectionError:  # a broker that has just started
                self.disconnect("quiet")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {schemas.api_name(api_key)} {reply}")
            time.sleep(0.02)

    def create(self, name: str, partitions: int = 1, **configs: str) -> uuid.UUID:
        """Creates a topic, not in the trace, and waits for its leaders. Returns the topic id.

        ``_`` in config names stands for ``.``.
        """
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": rows,
        }
        reply = self.quietly(19, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
        assert reply.topics[0].error_code is ErrorCode.none, reply
        self.wait_until_led(name, partitions)
        found: uuid.UUID = reply.topics[0].topic_id
        self.name_value(found, f"id of {self._symbols.get(name, name).strip('<>')}")
        return found

    def wait_until_led(self, name: str, partitions: int = 1) -> None:
        """Waits until a topic's partitions have leaders and can be read."""

        def ready(reply: Any) -> bool:
            (topic,) = reply.topics
            return len(topic.partitions) == partitions and all(p.leader_id >= 0 for p in topic.partitions)

        self.until(3, 12, {"topics": [{"topic_id": None, "name": name}]} | _METADATA, ready)
        part = [{"partition_index": p, "current_leader_epoch": -1, "timestamp": -1} for p in range(partitions)]
        asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": part}]}
        self.until(2, 6, asked, lambda reply: all(p.error_code == 0 for p in reply.topics[0].partitions))

    def wait_until_deleted(self, name: str) -> None:
        """Waits until a topic does not exist any more."""
        asked = {"topics": [{"topic_id": None, "name": name}]} | _METADATA
        self.until(3, 12, asked, lambda reply: reply.topics[0].error_code is ErrorCode.unknown_topic_or_partition)

    def pass_ms(self, ms: int) -> None:
        """Lets this time pass for the broker: by waiting, or by moving its clock if possible."""
        self._pass_ms(ms)

    def restart(self) -> None:
        """Stops the broker and starts it again. The next request of each client opens a new connection."""
        assert self._restart is not None, "this scenario has no broker of its own"
        for client in tuple(self._wires):
            self.disconnect(client)
        self._restart()

    # --- the trace ----------------------------------------------------------------------------------------------

    def note(self, what: str, asked: Any, found: Any) -> None:
        """Adds a step to the trace that is not one request and its reply."""
        self._steps.append({"client": "", "api": what, "version": 0, "request": asked, "reply": found})

    def close(self) -> None:
        """Deletes the run's topics and closes its connections."""
        names = [{"name": name, "topic_id": None} for name, symbol in self._symbols.items() if symbol[1:6] == "topic"]
        if names:
            self.quietly(20, 6, {"topics": names, "timeout": 10_000})
        for client in tuple(self._wires):
            self.disconnect(client)

    def shown(self, value: Any) -> Any:
        """The form of a value in the trace, with the symbols that are known so far."""
        return self._normaliser(lambda found: self._symbols.get(str(found))).value(value, "")

    def _normaliser(self, symbol_of: Callable[[uuid.UUID], str | None]) -> _Normaliser:
        replacements = sorted(self._symbols.items(), key=lambda pair: -len(pair[0]))
        return _Normaliser(symbol_of, replacements, self._numbers, self._raw_symbols)

    def trace(self) -> list[Step]:
        """All steps so far, normalised, as JSON values."""
        ids = itertools.count(1)
        unnamed: dict[str, str] = {}

        def symbol_of(value: uuid.UUID) -> str | None:
            text = str(value)
            if value == _NO_ID:
                return None
            if text not in self._symbols and text not in unnamed:
                unnamed[text] = f"<id {next(ids)}>"
            return self._symbols.get(text) or unnamed[text]

        normalise = self._normaliser(symbol_of)
        shown = []
        for step in self._steps:
            shown_step = {"client": normalise.value(step["client"], ""), "api": step["api"], "version": step["version"]}
            shown_step["request"] = normalise.value(step["request"], "")
            reply = normalise.value(step.get("reply"), "")
            for name in step.get("unordered", ()):
                _sort(reply, name)
            shown_step["reply"] = reply
            shown.append(shown_step)
        return shown


_METADATA = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}


class _Normaliser:
    def __init__(
        self,
        symbol_of: Callable[[uuid.UUID], str | None],
        replacements: Iterable[tuple[str, str]],
        numbers: Mapping[int, str],
        raw_symbols: Mapping[bytes, str],
    ) -> None:
        self._numbers = numbers
        self._symbol_of = symbol_of
        self._replacements = list(replacements)
        self._in_bytes = {found.encode(): symbol for found, symbol in self._replacements}
        self._in_bytes |= {found: self._text(symbol, "") for found, symbol in raw_symbols.items()}
        for found, symbol in self._replacements:
            if _UUID.fullmatch(found):
                self._in_bytes[uuid.UUID(found).bytes] = symbol

    def value(self, value: Any, name: str) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Mapping):
            shown = {key: self.value(inner, str(key)) for key, inner in value.items()}
            if shown.get("topic") == _OFFSETS_TOPIC and _are_numbers(shown.get("partitions")):
                shown["partitions"] = ["<partition>" for _ in shown["partitions"]]  # by the hash of a group's name
            return shown
        if isinstance(value, ErrorCode):
            return value.name
        if isinstance(value, Enum):
            return self.value(value.value, name)
        if name in _PLACES and value:
            return _PLACES[name]
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, uuid.UUID):
            return self._symbol_of(value)
        if isinstance(value, Raw):
            return self._raw(value)
        if isinstance(value, Varying):
            return f"<{len(value)} bytes>"
        if name in _DISK and value > 0:
            return "<bytes>"
        if isinstance(value, bytes | bytearray | memoryview):
            if symbol := self._in_bytes.get(bytes(value)):
                return symbol
            if any(name in bytes(value) for name in self._in_bytes if len(name) >= _TELLING):
                return self._raw(bytes(value))
            return f"<{len(value)} bytes, crc {zlib.crc32(value):08x}>"
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(inner, name) for inner in value]
        return self._number(value, name)

    def _text(self, value: str, name: str) -> str:
        if name in _TEXTS and value:
            return "<text>"
        for found, symbol in self._replacements:
            value = value.replace(found, symbol)
        value = _UUID.sub("<uuid>", value)  # member ids that the scenario has not named
        if len(value) > _LONG:
            return f"<{len(value)} characters, crc {zlib.crc32(value.encode()):08x}>"
        return value

    def _raw(self, value: bytes) -> str:
        """Shows symbols for known names and times, printable bytes unchanged, and other bytes as ``\x01``."""
        shown, at = "", 0
        names = sorted(self._in_bytes, key=len, reverse=True)
        while at < len(value):
            name = next((name for name in names if value.startswith(name, at)), None)
            if name is not None:
                shown, at = shown + self._in_bytes[name], at + len(name)
            elif len(value) >= at + 8 and _NOW_FROM_MS < int.from_bytes(value[at : at + 8], "big") < _NOW_BELOW_MS:
                shown, at = shown + "<now>", at + 8
            else:
                char = chr(value[at])
                shown += char if char.isascii() and char.isprintable() and char not in "<\\" else f"\\x{value[at]:02x}"
                at += 1
        return shown

    def _number(self, value: Any, name: str) -> Any:
        if isinstance(value, timedelta):
            value = schemas.milliseconds(value)
        if isinstance(value, datetime):
            value = int(value.timestamp() * 1000)
        if name == "throttle_time" and value:
            return "<throttled>"
        if name in _COUNTERS and value >= 0:
            return "<counter>"
        if name.endswith(("_id", "_id_filters")) and value in self._numbers:
            return self._numbers[value]
        if isinstance(value, int) and not isinstance(value, bool) and _NOW_FROM_MS < value < 1 << 42:
            return "<now>"
        return value


def _are_numbers(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, int) for row in rows)


def _sort(tree: Any, name: str) -> None:
    """Sorts every list called ``name``, innermost first."""
    if isinstance(tree, dict):
        for key, inner in tree.items():
            _sort(inner, name)
            if key == name and isinstance(inner, list):
                inner.sort(key=_order)
    elif isinstance(tree, list):
        for inner in tree:
            _sort(inner, name)


_NAMES = ("name", "user", "topic", "key", "partition_index", "entity_type", "group_id", "member_id")


def _order(row: Any) -> tuple[str, str]:
    named = row if isinstance(row, dict) else {}
    name = next((named[key] for key in _NAMES if key in named), "")
    return str(name), json.dumps(row, sort_keys=True)


def run_scenario(
    bootstrap: str,
    scenario: Scenario,
    pass_ms: Callable[[int], object] | None = None,
    restart: Callable[[], object] | None = None,
) -> list[Step]:
    """Runs a scenario, and returns its trace.

    ``pass_ms`` lets time pass on the broker. Without ``pass_ms``, the scenario sleeps. ``restart`` restarts the broker.
    """
    run = Run(bootstrap, pass_ms, restart)
    try:
        scenario(run)
    finally:
        run.close()
    return json.loads(json.dumps(run.trace()))


def compare(expected: list[dict[str, Any]], found: list[dict[str, Any]], known: Iterable[str]) -> None:
    """Fails with differences that no ``known`` pattern matches, and with patterns that match no difference."""
    allowed = list(known)
    unseen, unexpected = allowed, []
    assert len(found) == len(expected), "the scenario changed: record it again"
    for number, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        assert theirs["request"] == ours["request"], f"{number}: the scenario changed: record it again"
        for line in differences(theirs, ours, f"{number} {theirs['api']} v{theirs['version']}"):
            matching = [pattern for pattern in allowed if re.search(pattern, line)]
            unseen = [pattern for pattern in unseen if pattern not in matching]
            if not matching:
                unexpected.append(f"{line}    request: {theirs['request']}")
    assert not unexpected, "\n" + "\n".join(unexpected)
    assert unseen == [], "these differences do not exist any more: remove them from the list"


def differences(expected: Any, found: Any, path: str = "") -> list[str]:
    """The differences of two normalised traces, one line each: ``path: expected … found …``."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = []
        for key in {**expected, **found}:
            lines += differences(expected.get(key, "<absent>"), found.get(key, "<absent>"), f"{path}.{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [line for at, pair in enumerate(zip(expected, found, strict=True)) for line in
                differences(*pair, f"{path}[{at}]")]  # fmt: skip
    if expected != found or type(expected) is not type(found):
        return [f"{path}: expected {json.dumps(expected)} found {json.dumps(found)}"]
    return []


@cache
def load(suite: str) -> dict[str, list[Step]]:
    """Returns a stored trace: scenario → steps. The result is cached, so a caller must not change it."""
    found: dict[str, list[Step]] = json.loads((TRACES / f"{suite}.json").read_text())
    return found


__all__ = ["CLOSED", "Pending", "Raw", "Run", "Scenario", "differences", "frames", "load", "run_scenario"]


def packed_traces(traces: Mapping[str, Sequence[Mapping[str, object]]]) -> str:
    """Returns JSON with one step per line, so that a changed reply is one changed line."""
    parts = []
    for name, steps in traces.items():
        lines = ",\n".join(json.dumps(step) for step in steps)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"
