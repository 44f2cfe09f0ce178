"""``odradek.Broker``: a Kafka broker for a ``with`` block, with a clock and faults under the test's control."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, Unpack

from odradek.broker.settings.config import BrokerConfig
from odradek.client.context_managers import Startable
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.core.errors import ConfigError
from odradek.core.operating_system import require_posix
from odradek.testing.process import BrokerFailed, BrokerProcess
from odradek.text.log_lines import LEVELS

if TYPE_CHECKING:
    from odradek.core.errors import ErrorCode
    from odradek.testing.security import BrokerSecurity
    from odradek.testing.thread import BrokerThread

__all__ = ["Broker", "BrokerClock", "BrokerFailed", "Faults", "FiredFault"]

DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
When = Literal["before", "after"]
_ADDRESS = re.compile(r"[^/]*:\d+")


class Broker(OtherNames, Startable):
    """One Kafka broker on this machine::

        with odradek.Broker(config={"num.partitions": 4}) as broker:
            Producer({"bootstrap.servers": broker.bootstrap_servers})

    ``data_dir``: the data directory; None creates a temporary one, which ``close`` removes. ``config`` maps Kafka's
    names of broker settings to values. ``port`` 0 selects a free port, which stays the same when the broker is started
    again. ``in_thread`` runs the broker in a thread of this process instead of its own process.

    ``security``: SSL, SASL_PLAINTEXT or SASL_SSL. The broker gets a certificate of a throw-away authority, and a user
    with a password for SCRAM-SHA-512; ``client_settings`` has what clients need::

        with odradek.Broker(security="SASL_SSL") as broker, odradek.Admin(broker.client_settings) as admin:
            print(admin.topics())

    ``log_level``: of the broker's own process, unless the environment variable ODRADEK_LOG_LEVEL sets it: DEBUG, INFO,
    WARNING, ERROR or CRITICAL.

    The first rebalance of a group does not wait for more members (``group.initial.rebalance.delay.ms`` is 0 unless
    set), because tests seldom need that.

    The broker always ends with this process. Raises ConfigError for a setting that does not exist or has an invalid
    value, or for an unknown log level, before anything is started; UnsupportedSystem on Windows.
    """

    # Subclasses use _engine and _security.

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        in_thread: bool = False,
        security: str | None = None,
        log_level: str = "WARNING",
        **others: Unpack[NoOthers],
    ) -> None:
        if len(others) > 0:
            _refuse_settings(others)
            refuse("Broker", others)
        if isinstance(data_dir, str) and _ADDRESS.fullmatch(data_dir):
            raise ConfigError(f"data_dir={data_dir!r} is an address: give host and port, or ./{data_dir} for a folder")
        require_posix("the broker")
        if log_level not in LEVELS:
            raise ConfigError(f"log_level must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {log_level!r}")
        texts = DEFAULTS | {name: config_text(name, value) for name, value in (config or {}).items()}
        if security is None:
            BrokerConfig(texts)
        self._own_directory = Path(tempfile.mkdtemp(prefix="odradek-"))
        temporary = data_dir is None
        self._security: BrokerSecurity | None = None
        if security is not None:
            texts = self._secured(security, host, texts)
        users = self._security.users if self._security is not None else None
        directory = self._own_directory / "data" if data_dir is None else Path(data_dir).absolute()
        self._engine: BrokerProcess | BrokerThread
        if in_thread:
            from odradek.testing.thread import BrokerThread

            self._engine = BrokerThread(directory, config=texts, host=host, port=port, add_scram=users)
        else:
            self._engine = BrokerProcess(
                self._own_directory,
                config=texts,
                host=host,
                port=port,
                data_dir=directory,
                temporary=temporary,
                add_scram=users,
                log_level=log_level,
            )
        self.data_dir = directory
        self.clock = BrokerClock(self._engine)
        self.faults = Faults(self._engine)
        # Ends the broker without close(): when this object is garbage-collected, or this process ends.
        self._end = weakref.finalize(self, _end, self._engine, self._own_directory, os.getpid(), temporary)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, for any Kafka client. With ``port`` 0, raises BrokerFailed before the first ``start``."""
        if not self._engine.port:
            raise BrokerFailed("the broker has not been started: call start(), or use it in a with block")
        return self._engine.bootstrap_servers

    def _secured(self, protocol: str, host: str, texts: dict[str, str]) -> dict[str, str]:
        """Makes the certificates and the user. Returns the settings with those of the security. Raises ConfigError."""
        from odradek.testing.security import make_security

        try:
            made = self._security = make_security(protocol, self._own_directory / "security", host)
            texts = made.broker | texts
            BrokerConfig(texts)
        except ConfigError:
            shutil.rmtree(self._own_directory, ignore_errors=True)
            raise
        return texts

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings that a client needs, for odradek, confluent-kafka and other clients with librdkafka's names.

        Without ``security`` that is ``bootstrap.servers`` alone."""
        own = {} if self._security is None else self._security.client
        return {"bootstrap.servers": self.bootstrap_servers, **own}

    @property
    def java_settings(self) -> dict[str, str]:
        """The same settings by the names of Java's clients, for a properties file."""
        own = {} if self._security is None else self._security.java
        return {"bootstrap.servers": self.bootstrap_servers, **own}

    @property
    def pid(self) -> int | None:
        """The broker's process id; None while it does not run, or if it runs in a thread."""
        return self._engine.pid

    @property
    def running(self) -> bool:
        """Whether the broker runs. False before ``start``, after ``stop`` or ``kill``, and if it ended by itself."""
        return self._engine.running

    @property
    def failed(self) -> bool:
        """Whether the broker ended without ``stop`` or ``kill``; ``log_tail`` says why."""
        return self._engine.failed

    def start(self) -> Self:
        """Starts the broker with its former data, port and clock, and returns when it accepts requests.

        Raises BrokerFailed with the end of its log (in a thread: StorageError, ListenError) if the start fails.
        """
        if not self._end.alive:
            raise BrokerFailed("the broker was closed, and its directory is removed")
        self._engine.start()
        return self

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> None:
        """Creates a topic; ``partitions`` None means the broker's ``num.partitions``.

        Raises ValueError with Kafka's message, for example if the topic exists or a setting does not.
        """
        texts = {setting: config_text(setting, value) for setting, value in (config or {}).items()}
        count = -1 if partitions is None else partitions
        self._engine.command("create_topic", name=name, partition_count=count, configs=texts)

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Deletes a topic with its records, and with the offsets that groups have committed for it.

        Raises UnknownTopic if there is no such topic, unless ``missing_ok``.
        """
        from odradek.client.admin import Admin
        from odradek.client.errors import UnknownTopic

        with Admin(self.bootstrap_servers) as admin, contextlib.suppress(*([UnknownTopic] if missing_ok else [])):
            admin.delete_topics([name])

    def cleaner(self) -> CleanerHealth:
        """Returns the health of the log cleaner. A log grows without limit if the cleaner is dead or has excluded the
        log's partition."""
        return CleanerHealth(**self._engine.command("cleaner"))

    def stop(self) -> None:
        """Stops the broker cleanly: it completes its requests and closes its logs.

        Raises BrokerFailed if the broker does not stop in time, or if its process ends or has ended with an error code.
        """
        code = self._engine.stop()
        if code:
            raise BrokerFailed(f"the broker ended with code {code}\n{self._engine.log_tail()}")

    def kill(self) -> None:
        """Ends the broker like a crash: with kill -9; in a thread, without syncs and without further replies."""
        self._engine.kill()

    def close(self) -> None:
        """Stops the broker; if ``data_dir`` was None, kills it and removes its data. Further calls do nothing."""
        self._end()

    def log_tail(self, start: int | None = None) -> str:
        """Returns the last lines of the broker's log ("" in a thread: it logs through this process's ``logging``).

        With ``start``, a former ``log_size``, only what the broker has logged since then.
        """
        return self._engine.log_tail(start)

    def log_size(self) -> int:
        """Returns the size of the broker's log in bytes (0 in a thread)."""
        return self._engine.log_size()

    def __enter__(self) -> Self:
        return self if self.running else super().__enter__()

    def __repr__(self) -> str:
        state = f"running at {self._engine.bootstrap_servers}" if self.running else "not running"
        return f"<odradek.Broker {state}>"


def _end(engine: BrokerProcess | BrokerThread, directory: Path, owner: int, temporary: bool) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that owns the broker
    try:
        if temporary:
            engine.kill()  # its data is removed anyway
        else:
            engine.stop()
    finally:
        engine.release_port()
        shutil.rmtree(directory, ignore_errors=True)


def config_text(name: str, value: object) -> str:
    """Returns the value of a setting as Kafka writes it. Raises ConfigError."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{name}: a setting is a text, a number, a boolean or a list of texts, not {value!r}")


class CleanerHealth(NamedTuple):
    """The log cleaner's health, partitions by name (``topic-0``). Times in ms since 1970 (-1: never), sizes in bytes.

    ``dead_thread_count``: the number of cleaner threads that have ended, as Kafka's metric of that name.
    ``uncleanable``: partitions that are not cleaned after a failure, with the reason. ``dirty_bytes``: the bytes
    that wait for a cleaning in all other partitions.
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


def _refuse_settings(others: Mapping[str, object]) -> None:
    """Raises TypeError if a keyword is a broker's setting: settings are in ``config``."""
    from odradek.broker.settings.keys import UnknownConfig, find_broker_key

    for name in sorted(others):
        setting = name.replace("_", ".")
        with contextlib.suppress(UnknownConfig):
            find_broker_key(setting)
            raise TypeError(f"Broker() has no {name}: here, config={{{setting!r}: {others[name]!r}}}")


class BrokerClock(OtherNames):
    # Subclasses use _move.
    """The broker's clock: the system's time plus all calls of ``advance``."""

    def __init__(self, engine: BrokerProcess | BrokerThread) -> None:
        self._engine = engine

    def now_ms(self) -> int:
        """Returns the broker's time in milliseconds since 1970."""
        return int(self._engine.command("now_ms"))

    def now(self) -> datetime:
        """Returns the broker's time in UTC."""
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
        """Moves the clock forward; all work that is due by then is done on return.

        Offsets have expired, old segments are deleted, and sessions of members have timed out. This includes live
        members, because they sent no heartbeat in the skipped time. Compaction has started, but may not be finished.
        The clock keeps its advance over ``kill`` and ``start``. Raises ValueError for a negative time, and TypeError if
        ``by`` is no timedelta.
        """
        if by is not None and not isinstance(by, timedelta):
            raise TypeError(f"advance() takes a timedelta or days=, hours=, …, not {by!r}")
        added = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        by_ms = ((by or timedelta(0)) + added) // timedelta(milliseconds=1)
        if by_ms < 0:
            raise ValueError(f"the broker's clock cannot go back ({by_ms} ms)")
        self._move(by_ms)

    def _move(self, by_ms: int) -> None:
        self._engine.command("advance", by_ms=by_ms)
        self._engine.clock_ahead_ms += by_ms


class FiredFault(NamedTuple):
    """A fault that was applied to a request. ``topics``: the topics in the request; ``at_ms``: the broker's time."""

    fault: int
    kind: str
    when: str
    api: str
    version: int
    client_id: str | None
    topics: list[str]
    at_ms: int


class Faults(OtherNames):
    """Faults for the next requests of an API.

    ``api`` is Kafka's name (``"OffsetCommit"``). Each call sets one fault for the next ``times`` requests of that API.
    With ``times=None`` the fault stays until ``clear``. ``topic`` and ``client_id`` limit the fault to requests with
    this topic and from this client. If several faults match, the one that was set first applies. With
    ``when="before"`` the request has no effect (a delayed request takes effect after the delay). With ``when="after"``
    the request has an effect, but the client gets no regular reply, or gets it late.

    ``error``, ``delay``, ``disconnect`` and ``drop`` return the fault's number, which is also in ``fired``. They raise
    ValueError for an unknown name. ``kill``, ``stop`` and ``start`` of the broker remove all faults.
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
        """Responds with an error (``"NOT_COORDINATOR"``, or its number) for each topic or group in the request."""
        code_value = int(code) if isinstance(code, int) else code
        return self._set("error", api, times=times, topic=topic, client_id=client_id, when=when, code=code_value)

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
        """Delays the request (``"after"``: its reply). Later requests of the connection wait, too."""
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
        """Closes the connection instead of a reply."""
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
        """Sends no reply. The connection stays open, and later requests on it get no reply either."""
        return self._set("drop", api, times=times, topic=topic, client_id=client_id, when=when)

    def _set(self, kind: str, api: str, **how: object) -> int:
        return int(self._engine.command("fault", kind=kind, api=api, **how))

    @property
    def fired(self) -> list[FiredFault]:
        """The faults applied since the last ``clear``, oldest first (the last 10,000)."""
        return [FiredFault(*row) for row in self._engine.command("faults")["fired"]]

    @property
    def pending(self) -> list[int]:
        """The numbers of the faults that can still be applied."""
        return list(self._engine.command("faults")["pending"])

    def clear(self) -> None:
        """Removes all faults and empties ``fired``. Requests that a fault has met stay delayed or without reply."""
        self._engine.command("clear_faults")
