"""Progress reports that the tasks of a read send while they run.

In local mode, Spark learns the record count of a task only when the task ends, on a cluster every ten seconds. One task
reads a whole range. So workers send the driver a datagram after each Arrow batch. Nothing waits for a datagram, and the
next one includes the count of a lost one. If none arrives, the progress bar does not move and the read continues.
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
from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OPTION = "progressTo"
"""The option of ``format("odradek")`` that makes workers report. Only this module interprets its value."""
_LOOK_S = 0.2
# The maximum time, at the end of a run, to count the reports that have arrived.
_DRAIN_S = 1.0
_LONGEST = 2048
_MOST_PIECES = 100_000


@contextlib.contextmanager
def progress_options(spark: SparkSession, advance: Callable[[int], None]) -> Iterator[dict[str, str]]:
    """Yields options for reads: with them, workers report progress to this process.

    If no socket can be bound, there are no options and no reports.

    A thread calls ``advance`` with the number of offsets that the tasks have read since the last call. Reports that
    have arrived when the block ends are still counted, for ``_DRAIN_S`` at most. A task that is tried again counts
    once.
    """
    settings = spark.sparkContext.getConf()
    host = settings.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    bind = settings.get("spark.driver.bindAddress", host) or host
    with contextlib.ExitStack() as stack:
        try:
            family, kind, _, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_DGRAM)[0]
            receiver = stack.enter_context(socket.socket(family, kind))
            receiver.bind(address)
        except OSError:  # the run must not fail for a progress bar
            yield {}
            return
        token = secrets.token_hex(8)
        stop = threading.Event()
        thread = threading.Thread(target=_listen, args=(receiver, token, advance, stop), daemon=True)
        thread.start()
        try:
            yield {OPTION: json.dumps([host, receiver.getsockname()[1], token])}
        finally:
            stop.set()
            thread.join()


def _listen(receiver: socket.socket, token: str, advance: Callable[[int], None], stop: threading.Event) -> None:
    passed: dict[tuple[str, int, int], int] = {}
    receiver.settimeout(_LOOK_S)
    until = float("inf")
    while time.monotonic() < until:
        if until == float("inf") and stop.is_set():  # count reports that have arrived, for a limited time
            until = time.monotonic() + _DRAIN_S
        try:
            report = _parse(receiver.recv(_LONGEST), token)
        except TimeoutError:
            if stop.is_set():
                return
            continue
        if report is None:
            continue
        key, count = report
        more = count - passed.get(key, 0)
        if more > 0:
            passed[key] = count
            advance(more)
        if len(passed) > _MOST_PIECES:  # a long query reads new pieces all the time: the oldest are done
            del passed[next(iter(passed))]


def _parse(datagram: bytes, token: str) -> tuple[tuple[str, int, int], int] | None:
    """Returns the piece (topic, partition, first offset) and the number of its offsets that are read; None for a
    datagram of another sender, because anyone can send."""
    try:
        fields = parse_json(datagram)
        if fields[0] != token:
            return None
        return (str(fields[1]), int(fields[2]), int(fields[3])), int(fields[4])
    except (ValueError, TypeError, LookupError, OverflowError):
        return None


def report_progress(
    to: str | None, batches: Iterator[pa.RecordBatch], partition: TopicPartition, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yields the Arrow batches and reports the progress of the piece after each, if ``to`` is given. Runs in a
    worker."""
    if to is None:
        yield from batches
        return
    for batch in batches:
        yield batch
        _send(to, partition, start, batch.column("offset")[-1].as_py() + 1 - start)
    _send(to, partition, start, end - start)


def _send(to: str, partition: TopicPartition, start: int, count: int) -> None:
    connection = _connection(to)
    if connection is not None:
        sender, address, token = connection
        with contextlib.suppress(OSError):  # no route, or a full buffer
            sender.sendto(json.dumps([token, *partition, start, count]).encode(), address)


@functools.lru_cache(1)  # a worker reads for one query at a time
def _connection(to: str) -> tuple[socket.socket, Any, str] | None:
    """Returns the socket, the driver's address and the token; None if the driver's host name cannot be resolved."""
    host, port, token = json.loads(to)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError:
        return None
    sender = socket.socket(family, kind)
    sender.setblocking(False)
    return sender, address, token
