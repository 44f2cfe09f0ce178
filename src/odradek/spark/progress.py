"""The progress of the tasks of a read, which they report while they run.

Spark knows a task's count of records when the task has ended, and one range is one task (in local mode; on a cluster
every ten seconds). So workers send the driver a datagram with each batch they have read. Nothing waits for one, and one
that is lost is made up for by the next; where none can arrive, the bar stands still and the read goes on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from odradek.core.ids import TopicPartition
from odradek.core.json_depth import parse_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OPTION = "progressTo"
"""The option of ``format("odradek")`` that has workers report. Its value is this module's own business."""
_LOOK_S = 0.2
# How long somebody who goes on sending can keep a run from its end.
_DRAIN_S = 1.0
_LONGEST = 2048
_MOST_PIECES = 100_000


@contextlib.contextmanager
def told(spark: SparkSession, advance: Callable[[int], None]) -> Iterator[dict[str, str]]:
    """Options for reads: ``advance`` is called with how many more offsets they have passed, from a thread of its own.

    All that has arrived when the block ends is told, unless strangers keep sending. Tasks that are tried again are
    counted once.
    """
    settings = spark.sparkContext.getConf()
    host = settings.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    bind = settings.get("spark.driver.bindAddress", host) or host
    with contextlib.ExitStack() as stack:
        try:
            family, kind, _, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_DGRAM)[0]
            listening = stack.enter_context(socket.socket(family, kind))
            listening.bind(address)
        except OSError:  # a bar is not worth a run
            yield {}
            return
        token = secrets.token_hex(8)
        stop = threading.Event()
        ear = threading.Thread(target=_listen, args=(listening, token, advance, stop), daemon=True)
        ear.start()
        try:
            yield {OPTION: json.dumps([host, listening.getsockname()[1], token])}
        finally:
            stop.set()
            ear.join()


def _listen(listening: socket.socket, token: str, advance: Callable[[int], None], stop: threading.Event) -> None:
    passed: dict[tuple[str, int, int], int] = {}
    listening.settimeout(_LOOK_S)
    until = float("inf")
    while time.monotonic() < until:
        if until == float("inf") and stop.is_set():  # what has arrived is still told, however much else comes
            until = time.monotonic() + _DRAIN_S
        try:
            heard = _understood(listening.recv(_LONGEST), token)
        except TimeoutError:
            if stop.is_set():
                return
            continue
        if heard is None:
            continue
        key, count = heard
        more = count - passed.get(key, 0)
        if more > 0:
            passed[key] = count
            advance(more)
        if len(passed) > _MOST_PIECES:  # a query that goes on meets new pieces for ever: the oldest are done
            del passed[next(iter(passed))]


def _understood(datagram: bytes, token: str) -> tuple[tuple[str, int, int], int] | None:
    """The piece and how far it has come, or None where somebody else sent this: anybody may."""
    try:
        said = parse_json(datagram)
        if said[0] != token:
            return None
        return (str(said[1]), int(said[2]), int(said[3])), int(said[4])
    except (ValueError, TypeError, LookupError, OverflowError):
        return None


def telling(
    to: str | None, batches: Iterator[pa.RecordBatch], partition: TopicPartition, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Runs in a worker: the batches as they come, and how far each has brought a piece told where it is asked for."""
    if to is None:
        yield from batches
        return
    for batch in batches:
        yield batch
        _say(to, partition, start, batch.column("offset")[-1].as_py() + 1 - start)
    _say(to, partition, start, end - start)


def _say(to: str, partition: TopicPartition, start: int, count: int) -> None:
    connection = _connection(to)
    if connection is not None:
        mouth, address, token = connection
        with contextlib.suppress(OSError):  # no way there, or no room for the moment
            mouth.sendto(json.dumps([token, *partition, start, count]).encode(), address)


@functools.lru_cache(1)  # a worker reads for one query after the other
def _connection(to: str) -> tuple[socket.socket, Any, str] | None:
    """None where the driver's name is not known here."""
    host, port, token = json.loads(to)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError:
        return None
    mouth = socket.socket(family, kind)
    mouth.setblocking(False)
    return mouth, address, token
