"""The widest valid requests: each array of each API's schema in turn has as many elements as the broker accepts.

The arrays are found in kio's schemas, so a new API or a new array is measured without a change here. A request has one
wide array; the arrays around it have one element. `VARIANTS` says what the elements contain.

As a program, it measures the requests and prints the table of `docs/limits.md`::

    python tests/limits/widest.py [--at-once N] [--patience S] [--variants VARIANT,...] [API_KEY]... > FILE
    python tests/limits/widest.py --write FILE...
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from hostile import SERIAL, Generator, Known, Request, Scale, _Message, _numbered, packed, places_of, versions_of  # noqa: E402
from metered_broker import MeteredBroker  # noqa: E402
from other_client import OtherClient, ran_ms  # noqa: E402
from support.brokers import CONFIG  # noqa: E402
from target import Peer, Target, forget_peak, is_alive, peak_of, use_of  # noqa: E402

from odradek.broker.handlers import handler_files  # noqa: E402
from odradek.wire import frames, schemas  # noqa: E402
from odradek.wire.api_keys import API_VERSIONS, CREATE_TOPICS, FIND_COORDINATOR, METADATA, OFFSET_FETCH  # noqa: E402
from odradek.wire.request_limits import MAX_ELEMENTS  # noqa: E402
from odradek.wire.schemas import Kind  # noqa: E402

WIDEST = MAX_ELEMENTS - 2000
"""The other arrays of a request, and its tagged fields, have the rest of the elements."""
VARIANTS = ("known", "strange", "equal")
"""The texts in the elements: those of existing resources where they can be; new ones everywhere; the same element again
and again."""


class Wide(NamedTuple):
    """An array of a request."""

    api_key: int
    version: int
    where: str
    variant: str = "known"

    def __str__(self) -> str:
        return f"{schemas.api_name(self.api_key)} v{self.version} {self.where} {self.variant}"


class _Strange(_Message):
    """Writes a message whose texts, inside of the wide array, are all different."""

    def text_of(self, field: Any, path: str, serial: bool) -> bytes | None:
        if path.startswith(self._where):
            return b"new-" + SERIAL
        return super().text_of(field, path, serial)


def wide_request(known: Known, wide: Wide, width: int = WIDEST) -> Request:
    """Returns the request. The same arguments give the same request."""
    generator = Generator(15, known, Scale(widths=(width,)))
    generator.dice = random.Random(str(wide))
    kind = _Strange if wide.variant == "strange" else _Message
    message = kind(generator, "repeated" if wide.variant == "equal" else "widest", wide.where)
    entity = schemas.message_type(wide.api_key, wide.version, Kind.REQUEST)
    body = _numbered(message.entity(entity, ""), generator.serial(), 0)
    return Request(wide.api_key, wide.version, "widest", wide.where, body)


def wide_arrays(
    versions: str = "newest", variants: Iterable[str] = ("known",), keys: Iterable[int] = ()
) -> Iterator[Wide]:
    """Yields each array of each API. ``versions``: the newest, the newest and the oldest (``ends``), or all."""
    wanted = set(keys)
    for api in handler_files("client"):
        if wanted and api.key not in wanted:
            continue
        known = versions_of(api.key)
        for version in {"newest": known[-1:], "ends": sorted({known[0], known[-1]}), "all": known}[versions]:
            for where in places_of(schemas.message_type(api.key, version, Kind.REQUEST), "widest"):
                for variant in variants:
                    yield Wide(api.key, version, where, variant)


class Found(NamedTuple):
    """The measurement of one wide request, sent ``at_once`` times on as many connections.

    ``peak``: the most memory above the idle broker. ``answered``: the number of complete replies before the clients
    gave up."""

    wide: Wide
    at_once: int
    size: int
    answers: str
    answered: int
    took_s: float
    cpu_ms: float
    turn_ms: float
    wait_ms: float
    peak: int
    alive: bool


NOT_WIDE = {
    12: "Heartbeat has no array", 17: "SaslHandshake has no array", 18: "ApiVersions has no array",
    22: "InitProducerId has no array", 25: "AddOffsetsToTxn has no array", 26: "EndTxn has no array",
    29: "DescribeAcls has no array", 36: "SaslAuthenticate has no array", 39: "RenewDelegationToken has no array",
    40: "ExpireDelegationToken has no array", 60: "DescribeCluster has no array", 64: "UnregisterBroker has no array",
    81: "RemoveRaftVoter has no array",
}  # fmt: skip
"""The APIs whose newest request cannot be wide, with the reason."""


def pid_of(broker: MeteredBroker) -> int:
    assert broker.pid is not None
    return broker.pid


_METADATA = {
    "topics": [{"topic_id": None, "name": "known"}],
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}
_ASKED_GROUP = {
    "group_id": "group",
    "member_id": None,
    "member_epoch": -1,
    "topics": [{"name": "known", "partition_indexes": [0]}],
}


def resources(target: Target) -> Known:
    """Creates a topic and the topics of the coordinators. Returns the topic with its id."""
    for key_type in (0, 1):
        target.quietly(FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": ["group"]})
    topic = {"name": "known", "num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
    target.quietly(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
    time.sleep(0.3)
    reply = target.quietly(METADATA, 12, _METADATA)
    return Known(("known",), (reply.topics[0].topic_id,), ("group",))


def usual_requests() -> list[bytes]:
    """What another client sends meanwhile: ApiVersions, Metadata of a topic, OffsetFetch of a partition."""
    offsets = {"groups": [_ASKED_GROUP], "require_stable": False}
    asked = [(API_VERSIONS, 0, {}), (METADATA, 12, _METADATA), (OFFSET_FETCH, 9, offsets)]
    return [frames.encode_request(key, version, 1, "another", message) for key, version, message in asked]


def exchange(peer: Peer, frame: bytes) -> None:
    """Sends a request and receives its reply, like a client of its own."""
    if not peer.send_raw(frame):
        peer.frame()


def measured(
    broker: MeteredBroker, known: Known, wide: Wide, at_once: int = 1, *, idle: int = 0, patience_s: float = 300
) -> Found:
    """Sends the request ``at_once`` times. Waits for all replies, or until ``patience_s`` have passed.

    ``idle``: the memory of the idle broker; by default its memory before the request."""
    frame, pid = packed(wide_request(known, wide), 7), pid_of(broker)
    turns: list[float] = []
    with Target(broker.bootstrap, patience_s=patience_s) as target:
        peers = [target.connect() for _ in range(at_once)]
        before = idle or use_of(pid).resident
        forget_peak(pid)
        with broker.turns(turns), OtherClient(broker.bootstrap, pid, usual_requests()) as other:
            started, ran = time.monotonic(), ran_ms(pid)
            with ThreadPoolExecutor(at_once) as threads:
                list(threads.map(lambda peer: exchange(peer, frame), peers))
            took_s, cpu_ms = time.monotonic() - started, ran_ms(pid) - ran
        alive = is_alive(pid)
        answers = target.answers
        peak = peak_of(pid) - before if alive else 0
    ended = answers.replies + answers.closed
    waited_ms = other.waits.longest_ms
    return Found(wide, at_once, len(frame), str(answers), ended, took_s, cpu_ms, max(turns), waited_ms, peak, alive)


def measured_each(wides: Iterable[Wide], at_once: int, patience_s: float) -> Iterator[Found]:
    """Measures requests of one API with a broker of its own."""
    with tempfile.TemporaryDirectory() as directory:
        broker = MeteredBroker(Path(directory), CONFIG)
        broker.start()
        try:
            time.sleep(2.5)  # the broker loads its last modules two seconds after its start
            with Target(broker.bootstrap) as target:
                known = resources(target)
            idle = use_of(pid_of(broker)).resident
            for wide in wides:
                with Target(broker.bootstrap) as target:
                    target.ask(wide.api_key, wide.version, wide_request(known, wide, 2).body)
                found = measured(broker, known, wide, at_once, idle=idle, patience_s=patience_s)
                yield found
                if not found.alive or found.answered < at_once:  # the next measurement needs an idle broker
                    broker.kill()
                    broker.start()
                    time.sleep(2.5)
        finally:
            broker.kill()


def by_api(wides: Iterable[Wide]) -> list[list[Wide]]:
    found: dict[int, list[Wide]] = {}
    for wide in wides:
        found.setdefault(wide.api_key, []).append(wide)
    return list(found.values())


# --- the table of docs/limits.md --------------------------------------------------------------------------------------

BEGIN, END = "<!-- widest: begin -->", "<!-- widest: end -->"
PAGE = _HERE.parent.parent / "docs" / "limits.md"
HEADINGS = (
    "| request, array | bytes | longest turn: one; ten | memory: one; ten | others wait: one; ten | CPU time: one |"
    "\n|---|---|---|---|---|---|"
)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Returns the rows of the table: for each array and number of requests, the largest value of all variants."""
    worst: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        api_key, version, where, _ = row["wide"]
        name = f"{schemas.api_name(api_key)} v{version} {where}"
        cell = worst.setdefault((api_key, where), {"name": name, "size": 0, "cpu_ms": 0})
        cell["size"] = max(cell["size"], row["size"])
        kind = "one" if row["at_once"] == 1 else "ten"
        if kind == "one":
            cell["cpu_ms"] = max(cell["cpu_ms"], row["cpu_ms"])
        for value in ("turn_ms", "wait_ms", "peak"):
            cell[f"{value} {kind}"] = max(cell.get(f"{value} {kind}", 0), row[value])
    return "\n".join([HEADINGS, *(_row(cell) for _, cell in sorted(worst.items()))])


def _row(cell: dict[str, Any]) -> str:
    def both(name: str, unit: float, text: str) -> str:
        values = [cell.get(f"{name} {kind}") for kind in ("one", "ten")]
        return "; ".join("–" if value is None else f"{value / unit:,.0f} {text}" for value in values)

    cells = [cell["name"], f"{cell['size'] / 1e6:.1f} MB", both("turn_ms", 1, "ms"), both("peak", 1e6, "MB")]
    cells += [both("wait_ms", 1, "ms"), f"{cell['cpu_ms'] / 1000:.1f} s"]
    return f"| {' | '.join(cells)} |"


def write(rows: Iterable[dict[str, Any]], page: Path = PAGE) -> None:
    """Replaces the table in the page."""
    text = page.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(f"{text[:begin]}\n{table(rows)}\n{text[end:]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("keys", nargs="*", type=int)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--patience", type=float, default=300, help="seconds until the clients give up")
    parser.add_argument("--variants", default="known,strange,equal")
    parser.add_argument("--versions", default="newest")
    parser.add_argument("--write", nargs="+", metavar="FILE", help="write the rows of these files into the page")
    options = parser.parse_args()
    if options.write:
        write(json.loads(line) for file in options.write for line in Path(file).read_text().splitlines())
        return
    for wides in by_api(wide_arrays(options.versions, options.variants.split(","), options.keys)):
        for found in measured_each(wides, options.at_once, options.patience):
            print(json.dumps(found._asdict()), flush=True)


if __name__ == "__main__":
    main()
