"""The widest valid requests: each array of each API's schema in turn has as many elements as the broker accepts.

The arrays are found in kio's schemas, so a new API or a new array is measured without a change here. A request has one
wide array; the arrays around it have one element. `VARIANTS` says what the elements contain.

As a program, it measures the requests and prints the table of `docs/limits.md`::

    python tests/limits/widest.py [--at-once N] [--variants VARIANT,...] [--versions newest|ends|all] [API_KEY]...
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
from odradek.wire import schemas  # noqa: E402
from odradek.wire.api_keys import CREATE_TOPICS, FIND_COORDINATOR, METADATA  # noqa: E402
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

    def _text(self, field: Any, path: str, serial: bool) -> bytes | None:
        if path.startswith(self._where):
            return b"new-" + SERIAL
        return super()._text(field, path, serial)


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
    for api in handler_files():
        if wanted and api.key not in wanted:
            continue
        known = versions_of(api.key)
        for version in {"newest": known[-1:], "ends": sorted({known[0], known[-1]}), "all": known}[versions]:
            for where in places_of(schemas.message_type(api.key, version, Kind.REQUEST), "widest"):
                for variant in variants:
                    yield Wide(api.key, version, where, variant)


class Found(NamedTuple):
    """The measurement of one wide request, sent ``at_once`` times on as many connections."""

    wide: Wide
    at_once: int
    size: int
    answers: str
    took_s: float
    cpu_ms: float
    turn_ms: float
    wait_ms: float
    peak: int
    alive: bool


def pid_of(broker: MeteredBroker) -> int:
    assert broker.pid is not None
    return broker.pid


def resources(target: Target) -> Known:
    """Creates a topic and the topics of the coordinators. Returns the topic with its id."""
    for key_type in (0, 1):
        target.quietly(FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": ["group"]})
    topic = {"name": "known", "num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
    target.quietly(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
    time.sleep(0.3)
    reply = target.quietly(
        METADATA,
        12,
        {
            "topics": [{"topic_id": None, "name": "known"}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    )
    return Known(("known",), (reply.topics[0].topic_id,), ("group",))


def exchange(peer: Peer, frame: bytes) -> None:
    """Sends a request and receives its reply, like a client of its own."""
    peer.send_raw(frame)
    peer.frame()


def measured(broker: MeteredBroker, known: Known, wide: Wide, at_once: int = 1) -> Found:
    """Sends the request and waits for all replies."""
    frame, pid = packed(wide_request(known, wide), 7), pid_of(broker)
    turns: list[float] = []
    with Target(broker.bootstrap, patience_s=300) as target:
        peers = [target.connect() for _ in range(at_once)]
        before = use_of(pid).resident
        forget_peak(pid)
        with broker.turns(turns), OtherClient(broker.bootstrap, pid) as other:
            started, ran = time.monotonic(), ran_ms(pid)
            with ThreadPoolExecutor(at_once) as threads:
                list(threads.map(lambda peer: exchange(peer, frame), peers))
            took_s, cpu_ms = time.monotonic() - started, ran_ms(pid) - ran
        alive = is_alive(pid)
        answers = str(target.answers)
        peak = peak_of(pid) - before if alive else 0
    return Found(wide, at_once, len(frame), answers, took_s, cpu_ms, max(turns), other.waits.longest_ms, peak, alive)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("keys", nargs="*", type=int)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--variants", default="known,strange,equal")
    parser.add_argument("--versions", default="newest")
    options = parser.parse_args()
    by_key: dict[int, list[Wide]] = {}
    for wide in wide_arrays(options.versions, options.variants.split(","), options.keys):
        by_key.setdefault(wide.api_key, []).append(wide)
    for wides in by_key.values():
        with tempfile.TemporaryDirectory() as directory:
            broker = MeteredBroker(Path(directory), CONFIG)
            broker.start()
            try:
                time.sleep(2.5)
                with Target(broker.bootstrap) as target:
                    known = resources(target)
                for wide in wides:
                    with Target(broker.bootstrap) as target:
                        target.ask(wide.api_key, wide.version, wide_request(known, wide, 2).body)
                    found = measured(broker, known, wide, options.at_once)
                    print(json.dumps(found._asdict() | {"wide": str(wide)}), flush=True)
                    if not found.alive:
                        break
            finally:
                broker.kill()


if __name__ == "__main__":
    main()
