"""``odradek.Broker``: a Kafka broker for as long as a ``with`` block, whose time and whose faults are yours."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from odradek.broker.config import BrokerConfig
from odradek.core.errors import ConfigError
from odradek.testing.cluster import BrokerFailed, BrokerProcess

if TYPE_CHECKING:
    from odradek.core.errors import ErrorCode
    from odradek.testing.thread import BrokerThread

__all__ = ["Broker", "BrokerFailed", "Clock", "Faults", "FiredFault"]

DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
When = Literal["before", "after"]


class Broker:
    """One Kafka broker on this machine::

        with odradek.Broker(config={"num.partitions": 4}) as broker:
            Producer({"bootstrap.servers": broker.bootstrap_servers})

    ``data_dir``: where it keeps its data; None takes a temporary directory, which ``close`` removes. ``config`` maps
    Kafka's names of broker settings to values. ``port`` 0 takes a free one; it stays the same when the broker is
    started again. ``in_thread`` runs it in a thread of this process instead of a process of its own.

    The first rebalance of a group waits for nobody (``group.initial.rebalance.delay.ms`` is 0 unless set), since
    tests seldom want to wait for more members.

    However this process ends, the broker ends with it. Raises ConfigError for a setting that does not exist or has
    an ill value, before anything is started.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        in_thread: bool = False,
    ) -> None:
        texts = DEFAULTS | {name: _text(name, value) for name, value in (config or {}).items()}
        BrokerConfig(texts)
        self._own_directory = Path(tempfile.mkdtemp(prefix="odradek-"))
        temporary = data_dir is None
        place = self._own_directory / "data" if data_dir is None else Path(data_dir).absolute()
        self._engine: BrokerProcess | BrokerThread
        if in_thread:
            from odradek.testing.thread import BrokerThread

            self._engine = BrokerThread(place, config=texts, host=host, port=port)
        else:
            self._engine = BrokerProcess(
                self._own_directory, config=texts, host=host, port=port, data_dir=place, temporary=temporary
            )
        self.data_dir = place
        self.clock = Clock(self._engine)
        self.faults = Faults(self._engine)
        # Without close(): when nobody holds this object any more, or this process ends.
        self._end = weakref.finalize(self, _end, self._engine, self._own_directory, os.getpid(), temporary)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, for any Kafka client. Raises BrokerFailed before the first ``start``."""
        if not self._engine.port:
            raise BrokerFailed("the broker has not been started")
        return self._engine.bootstrap_servers

    @property
    def pid(self) -> int | None:
        """The number of its process; None while it does not run, or runs in a thread."""
        return self._engine.pid

    @property
    def running(self) -> bool:
        """Whether it runs: not before ``start`` and after ``stop`` or ``kill``, nor when it ended by itself."""
        return self._engine.running

    @property
    def failed(self) -> bool:
        """Whether it ended though nobody stopped or killed it; ``log_tail`` says why."""
        return self._engine.failed

    def start(self) -> Self:
        """Starts it, with the data, the port and the clock it had, and returns once it takes requests.

        Raises BrokerFailed with the end of its log (in a thread: StorageError, ListenError) where it cannot.
        """
        if not self._end.alive:
            raise BrokerFailed("the broker was closed, and its directory is gone")
        self._engine.start()
        return self

    def create_topic(self, name: str, partitions: int | None = None, config: Mapping[str, Any] | None = None) -> None:
        """Creates a topic; ``partitions`` None takes the broker's ``num.partitions``.

        Raises ValueError, with what Kafka says, where that cannot be: it exists, a setting does not.
        """
        texts = {setting: _text(setting, value) for setting, value in (config or {}).items()}
        count = -1 if partitions is None else partitions
        self._engine.command("create_topic", name=name, partition_count=count, configs=texts)

    def cleaner(self) -> CleanerHealth:
        """How its log cleaner fares: one that is dead, or gives a partition up, lets that log grow without end."""
        return CleanerHealth(**self._engine.command("cleaner"))

    def stop(self) -> None:
        """Stops it in peace: requests are answered, logs closed. Raises BrokerFailed where it had failed before."""
        code = self._engine.stop()
        if code:
            raise BrokerFailed(f"the broker ended with code {code}\n{self._engine.log_tail()}")

    def kill(self) -> None:
        """Ends it as a crash does: kill -9; in a thread, without flushing or telling anybody."""
        self._engine.kill()

    def close(self) -> None:
        """Stops it, and removes its data if ``data_dir`` was None. Nothing happens the second time."""
        self._end()

    def log_tail(self) -> str:
        """The last lines it logged ("" in a thread: there it logs through this process's ``logging``).

        How much it logs is what the environment variable ODRADEK_LOG_LEVEL says, from WARNING on if unset.
        """
        return self._engine.log_tail()

    def __enter__(self) -> Self:
        try:
            return self.start() if not self.running else self
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"running at {self._engine.bootstrap_servers}" if self.running else "not running"
        return f"<odradek.Broker {state}>"


def _end(engine: BrokerProcess | BrokerThread, directory: Path, owner: int, temporary: bool) -> None:
    if os.getpid() != owner:
        return  # a fork of the process whose broker it is
    try:
        if temporary:
            engine.kill()  # what it would write now goes anyway
        else:
            engine.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{name}: a setting is a text, a number, a boolean or a list of texts, not {value!r}")


class CleanerHealth(NamedTuple):
    """The log cleaner's health, partitions by name (``topic-0``). Times in ms since 1970 (-1: never), sizes in bytes.

    ``dead_thread_count``: cleaners that should run and do not, as in Kafka's metric of that name. ``uncleanable``:
    partitions left alone after a failure, and why; ``dirty_bytes`` are those of the others.
    """

    thread_count: int
    dead_thread_count: int
    last_run_ms: int
    cleanings: int
    in_progress: list[str]
    dirty_bytes: dict[str, int]
    max_dirty_ratio: float
    uncleanable: dict[str, str]
    uncleanable_bytes: int


class Clock:
    """The broker's clock: the system's, and as far ahead of it as you have moved it."""

    def __init__(self, engine: BrokerProcess | BrokerThread) -> None:
        self._engine = engine

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the broker's clock."""
        return int(self._engine.command("now_ms"))

    def now(self) -> datetime:
        """The broker's time, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Moves the clock forward; on return all that was due by then has been done.

        Offsets have expired, sessions of members have timed out (live ones too: to them it is as if their heartbeats
        had not come through for so long), old segments are deleted. Compaction is begun. Stays over ``kill`` and
        ``start``. Raises ValueError for going back.
        """
        if by is not None and not isinstance(by, timedelta):
            raise TypeError(f"advance() takes a timedelta or days=, hours=, …, not {by!r}")
        added = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        by_ms = ((by or timedelta(0)) + added) // timedelta(milliseconds=1)
        if by_ms < 0:
            raise ValueError(f"the broker's clock cannot go back ({by_ms} ms)")
        self._engine.command("advance", by_ms=by_ms)
        self._engine.clock_ahead_ms += by_ms


class FiredFault(NamedTuple):
    """A fault that hit a request. ``topics``: those the request names; ``at_ms``: by the broker's clock."""

    fault: int
    kind: str
    when: str
    api: str
    version: int
    client_id: str | None
    topics: list[str]
    at_ms: int


class Faults:
    """Faults for the next requests of an API.

    ``api`` is Kafka's name (``"OffsetCommit"``). Each call sets one fault, which hits the next ``times`` requests
    (None: all, until ``clear``) of that API that name ``topic`` and come from ``client_id``, where these are given;
    of several that fit, the first set strikes. With ``when="before"`` the request has no effect (a delayed one takes
    effect when the time is up), with ``when="after"`` it has, and only the client does not hear of it (in time).

    All return the fault's number, which ``fired`` shows, and raise ValueError for a name that does not exist. Faults
    do not outlive the broker's ``kill``, ``stop`` and ``start``.
    """

    def __init__(self, engine: BrokerProcess | BrokerThread) -> None:
        self._engine = engine

    def error(
        self,
        api: str,
        code: str | int | ErrorCode,
        *,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
        when: When = "before",
    ) -> int:
        """Answers with an error (``"NOT_COORDINATOR"``, or its number), for everything that the request names."""
        told = int(code) if isinstance(code, int) else code
        return self._set("error", api, times=times, topic=topic, client_id=client_id, when=when, code=told)

    def delay(
        self,
        api: str,
        seconds: float,
        *,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
        when: When = "before",
    ) -> int:
        """Lets the request wait (``"after"``: its reply), and with it what its connection sends next."""
        return self._set("delay", api, times=times, topic=topic, client_id=client_id, when=when, seconds=seconds)

    def disconnect(
        self,
        api: str,
        *,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
        when: When = "before",
    ) -> int:
        """Closes the connection in place of a reply."""
        return self._set("disconnect", api, times=times, topic=topic, client_id=client_id, when=when)

    def drop(
        self,
        api: str,
        *,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
        when: When = "before",
    ) -> int:
        """Never replies: the connection stays open, and nothing sent on it is answered any more."""
        return self._set("drop", api, times=times, topic=topic, client_id=client_id, when=when)

    def _set(self, kind: str, api: str, **how: Any) -> int:
        return int(self._engine.command("fault", kind=kind, api=api, **how))

    @property
    def fired(self) -> list[FiredFault]:
        """What has struck since the last ``clear``, oldest first (the last 10,000)."""
        return [FiredFault(*row) for row in self._engine.command("faults")["fired"]]

    @property
    def pending(self) -> list[int]:
        """The numbers of the faults that can still strike."""
        return list(self._engine.command("faults")["pending"])

    def clear(self) -> None:
        """Forgets all faults and ``fired``. Requests struck before stay so: late, or without a reply."""
        self._engine.command("clear_faults")
