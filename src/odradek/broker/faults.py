"""Faults on demand: a request of some API, topic or client fails, waits, or loses its connection.

For tests of what clients do then. The router asks here only while a fault is set (``Router.faults``).

| kind | ``when="before"`` | ``when="after"`` |
|---|---|---|
| error | answered with the code, nothing is done | done, then answered with the code all the same |
| delay | waits, then is done | done at once, the reply waits |
| disconnect | the connection is closed, nothing is done | done, then closed in place of a reply |
| drop | nothing is done and there is no reply | done, and there is no reply |

As in Kafka, a connection's requests are done one after another: while one waits to be done, or has been dropped,
those behind it stand still. Where a code stands in a reply is told in broker/error_replies.
"""

from __future__ import annotations

import difflib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from itertools import count
from types import GeneratorType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kio.serial._introspect import classify_field

from odradek.broker.api import Context
from odradek.broker.error_replies import has_code, refusal
from odradek.broker.handlers.k03_metadata import describe_cluster
from odradek.broker.scheduler import finish
from odradek.core.deferred import Deferred, Hangup
from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.api_keys import FETCH, METADATA, PRODUCE
from odradek.wire.produce_fetch_replies import joined
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from odradek.broker.api import Client
    from odradek.broker.router import Api, Router
    from odradek.broker.server import BrokerServer

log = logging.getLogger("odradek.broker")

KINDS = ("error", "delay", "disconnect", "drop")
WHEN = ("before", "after")
FIRED_KEPT = 10_000
_TOPIC_RESOURCE = 2
_TEXT = "a fault set on purpose"


class Fault:
    """One fault. ``left``: how many more requests it hits, None for all until cleared."""

    __slots__ = ("api_key", "client_id", "code", "delay_s", "kind", "left", "number", "topic", "when")

    def __init__(self, number: int, api_key: int, kind: str, when: str, left: int | None) -> None:
        self.number = number
        self.api_key = api_key
        self.kind = kind
        self.when = when
        self.left = left
        self.code = ErrorCode.none
        self.delay_s = 0.0
        self.topic: str | None = None
        self.client_id: str | None = None


class Fired(NamedTuple):
    """A fault that hit a request. ``topics`` are those the request names; ``at_ms`` is the broker's clock."""

    fault: int
    kind: str
    when: str
    api: str
    version: int
    client_id: str | None
    topics: list[str]
    at_ms: int


# --- what a test says ---------------------------------------------------------------------------------------------


def kafka_name(api_key: int) -> str:
    """``OffsetCommit`` for 8."""
    return "".join(part.capitalize() for part in schemas.api_name(api_key).split("_"))


def find_api(router: Router, name: str | int) -> int:
    """The key of a served API, from Kafka's name in any spelling, or the key. Raises ValueError with the nearest."""
    if isinstance(name, int) and name in router.apis:
        return name
    served = {kafka_name(key): key for key in router.apis}
    plain = {known.lower(): key for known, key in served.items()}
    asked = str(name).replace("_", "").lower()
    if asked in plain:
        return plain[asked]
    near = difflib.get_close_matches(asked, plain, n=1)
    hint = f"; did you mean {kafka_name(plain[near[0]])!r}?" if near else ""
    raise ValueError(f"no API {name!r} is served{hint}")


def find_code(name: str | int) -> ErrorCode:
    """An error by Kafka's name or number. Raises ValueError with the nearest."""
    if isinstance(name, int):
        try:
            return ErrorCode(name)
        except ValueError:
            raise ValueError(f"Kafka has no error code {name}") from None
    asked = name.lower()
    if asked in ErrorCode.__members__:
        return ErrorCode[asked]
    near = difflib.get_close_matches(asked, ErrorCode.__members__, n=1)
    hint = f"; did you mean {near[0].upper()!r}?" if near else ""
    raise ValueError(f"Kafka has no error code {name!r}{hint}")


def names_topics(api_key: int, version: int) -> bool:
    """Whether a request of this API can say which topics it is about."""
    return _has_topics(schemas.message_type(api_key, version, Kind.REQUEST))


def _has_topics(entity: Any) -> bool:
    for field in fields(entity):
        kind = classify_field(field)
        if kind.is_array and (field.name.startswith("topic") or field.name == "resources"):
            return True
        if field.name == "groups" and is_dataclass(kind.type_) and _has_topics(kind.type_):
            return True
    return False


# --- serving ------------------------------------------------------------------------------------------------------


class _Hold:
    """A connection whose requests stand still, the first of them at ``run``; in ``Client.parked``."""

    def __init__(self, faults: Faults, connection: Client, run: Callable[[], None] | None) -> None:
        self._faults = faults
        self._connection = connection
        self._run = run
        self._timer: Any = None
        self.behind: deque[Callable[[], None]] = deque()

    def release_after(self, seconds: float) -> None:
        self._timer = self._faults.broker.loop.call_later(seconds, self.wake)

    def wake(self) -> None:
        """The time is up, or the broker stops: a dropped request stays without a reply for ever."""
        if self._run is None:
            self._connection.abort()
            return
        self._end()
        self._run()
        # One of these may be held again; it then takes those left behind it along.
        while self.behind and not self._faults.held(self._connection):
            self.behind.popleft()()
        if self.behind:
            self._faults.holds[self._connection].behind.extend(self.behind)

    def abandon(self) -> None:
        """The client has gone. What it sent is done all the same when its time comes; what is behind was not read."""
        self.behind.clear()
        if self._run is None:
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.parked.discard(self)
        self._faults.forget(self._connection, self)


class Faults:
    """The faults set and those that fired. Installs itself as ``router.faults`` while there is something to do."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        self.fired: deque[Fired] = deque(maxlen=FIRED_KEPT)
        self.holds: dict[Client, _Hold] = {}
        self._set: list[Fault] = []
        self._numbers = count(1)

    # what a test does

    def add(
        self,
        kind: str,
        api: str | int,
        *,
        code: str | int | None = None,
        seconds: float = 0.0,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
        when: str = "before",
    ) -> int:
        """Sets one and returns its number. Raises ValueError."""
        router = self.broker.router
        if kind not in KINDS:
            raise ValueError(f"a fault is one of {', '.join(KINDS)}, not {kind!r}")
        if when not in WHEN:
            raise ValueError(f"a fault strikes before or after the request takes effect, not {when!r}")
        if times is not None and times < 1:
            raise ValueError(f"times is 1 or more, or None for every request, not {times}")
        if not seconds >= 0:
            raise ValueError(f"a delay is 0 s or more, not {seconds}")
        key = find_api(router, api)
        if topic is not None and not names_topics(key, router.apis[key].newest):
            raise ValueError(f"{kafka_name(key)} requests name no topic to match by")
        fault = Fault(next(self._numbers), key, kind, when, times)
        if kind == "error":
            fault.code = find_code("" if code is None else code)
            if not has_code(schemas.message_type(key, router.apis[key].newest, Kind.RESPONSE)):
                raise ValueError(f"the reply to {kafka_name(key)} has no place for an error")
        fault.delay_s, fault.topic, fault.client_id = float(seconds), topic, client_id
        self._set.append(fault)
        router.middleware = self
        return fault.number

    def clear(self) -> None:
        """Forgets all faults and what fired. Requests that wait go on; dropped ones stay without a reply."""
        self._set.clear()
        self.fired.clear()
        self._rest()

    def pending(self) -> list[int]:
        """The numbers of the faults that can still strike."""
        return [fault.number for fault in self._set]

    def held(self, connection: Client) -> bool:
        return connection in self.holds

    def forget(self, connection: Client, hold: _Hold) -> None:
        if self.holds.get(connection) is hold:
            del self.holds[connection]
        self._rest()

    def _rest(self) -> None:
        if not self._set and not self.holds:
            self.broker.router.middleware = None

    # what the router does

    def serve(self, api: Api, context: Context, message: Any) -> Any:
        """In place of the handler."""
        hold = self.holds.get(context.connection)
        if hold is not None:
            promise: Deferred[Any] = Deferred()
            hold.behind.append(lambda: self._keep(promise, context, lambda: self.serve(api, context, message)))
            return promise
        fault = self._strike(context, message)
        if fault is None:
            return self.broker.router.call(api.handle, context, message)
        if fault.when == "before":
            return self._before(fault, api, context, message)
        reply = self.broker.router.call(api.handle, context, message)
        if isinstance(reply, Deferred) and not reply.resolved:
            return self._later(reply, fault, context, message)
        return self._after(fault, context, message, reply.value if isinstance(reply, Deferred) else reply)

    def _strike(self, context: Context, message: Any) -> Fault | None:
        """The first fault that fits, counted and noted."""
        for fault in self._set:
            if fault.api_key != context.api_key or fault.client_id not in (None, context.client_id):
                continue
            topics = self._topics(context, message)
            if fault.topic is not None and topics is not None and fault.topic not in topics:
                continue
            if fault.left is not None:
                fault.left -= 1
                if not fault.left:
                    self._set.remove(fault)
            self.fired.append(
                Fired(
                    fault.number,
                    fault.kind,
                    fault.when,
                    kafka_name(context.api_key),
                    context.version,
                    context.client_id,
                    sorted(topics or ()),
                    self.broker.now_ms(),
                )
            )
            log.info("fault %d: %s of %s", fault.number, fault.kind, kafka_name(context.api_key))
            self._rest()
            return fault
        return None

    def _before(self, fault: Fault, api: Api, context: Context, message: Any) -> Any:
        if fault.kind == "error":
            return self._refuse(fault, context, message)
        if fault.kind == "disconnect":
            raise Hangup(_TEXT)
        promise: Deferred[Any] = Deferred()
        if fault.kind == "drop":
            self._hold(context.connection, None)
            return promise

        def run() -> None:
            self._keep(promise, context, lambda: self.broker.router.call(api.handle, context, message))

        self._hold(context.connection, run).release_after(fault.delay_s)
        return promise

    def _after(self, fault: Fault, context: Context, message: Any, reply: Any) -> Any:
        if fault.kind == "error":
            return self._refuse(fault, context, message, reply)
        if fault.kind == "disconnect":
            raise Hangup(_TEXT)
        promise: Deferred[Any] = Deferred()
        if fault.kind == "drop":
            self._hold(context.connection, None)
        else:
            self.broker.loop.call_later(fault.delay_s, lambda: promise.resolve(reply))
        return promise

    def _later(self, reply: Deferred[Any], fault: Fault, context: Context, message: Any) -> Deferred[Any]:
        promise: Deferred[Any] = Deferred()
        reply.then(lambda value: self._keep(promise, context, lambda: self._after(fault, context, message, value)))
        return promise

    def _hold(self, connection: Client, run: Callable[[], None] | None) -> _Hold:
        hold = self.holds[connection] = _Hold(self, connection, run)
        connection.parked.add(hold)
        self.broker.router.middleware = self
        return hold

    @staticmethod
    def _keep(promise: Deferred[Any], context: Context, work: Callable[[], Any]) -> None:
        """Resolves with what ``work`` gives, now or later, an error included."""
        try:
            value = work()
        except Hangup:
            context.connection.abort()
            return
        except Exception as error:
            value = error  # the router makes a reply of it, as of one that a handler raises
        if isinstance(value, Deferred):
            value.then(promise.resolve)
        else:
            promise.resolve(value)

    # refusing

    def _refuse(self, fault: Fault, context: Context, message: Any, served: Any = None) -> Any:
        """``served``: the handler's reply, where it has given one."""
        key, version = context.api_key, context.version
        if key == PRODUCE and message.acks == 0:
            raise Hangup(_TEXT)  # what Kafka does where an error cannot be told
        if key == FETCH:
            return self._refuse_fetch(fault, context, message, served)
        if key == METADATA:
            return self._refuse_metadata(fault, context, message)
        if message is None:  # ApiVersions in a version we do not have: v0 answers
            message = SimpleNamespace()
        reply = refusal(key, version, message, fault.code, _TEXT)
        if reply is None:
            raise Hangup(_TEXT)
        return reply

    def _refuse_fetch(self, fault: Fault, context: Context, message: Any, reply: Any) -> Any:
        """A fetch session goes on as if the request had been served; every partition in it is refused."""
        session_id = 0
        if context.version >= 7:
            if reply is None:
                at_once = replace(message, max_wait=timedelta(0))
                reply = self._served_at_once(FETCH, context, at_once)
            data = joined(reply)
            served, _ = schemas.decode(FETCH, context.version, Kind.RESPONSE, data)
            if served.error_code is not ErrorCode.none:
                return data
            session_id = served.session_id
        asked = SimpleNamespace(topics=self._fetched(session_id, message))
        refused = refusal(FETCH, context.version, asked, fault.code) or {}
        return refused | {"session_id": session_id}

    def _fetched(self, session_id: int, message: Any) -> list[Any]:
        """Topics with partitions: the session's, or where there is none, the request's."""
        session = self.broker.fetch_sessions.find(session_id)
        if session is None:
            return list(message.topics)
        topics: dict[Any, list[Any]] = {}
        for wanted in session.wanted:
            topics.setdefault(wanted.topic, []).append(SimpleNamespace(partition=wanted.partition))
        return [
            SimpleNamespace(**{"topic_id" if isinstance(topic, UUID) else "topic": topic}, partitions=partitions)
            for topic, partitions in topics.items()
        ]

    def _refuse_metadata(self, fault: Fault, context: Context, message: Any) -> Any:
        """Brokers and controller are told as ever, since a client without them knows nobody to ask again."""
        named = message.topics or [
            SimpleNamespace(name=topic.name, topic_id=topic.id) for topic in self.broker.catalog.topics()
        ]
        refused = refusal(METADATA, context.version, SimpleNamespace(topics=named), fault.code) or {}
        return {**describe_cluster(self.broker, context, message, []), "topics": refused["topics"]}

    def _served_at_once(self, key: int, context: Context, message: Any) -> Any:
        reply: Any = self.broker.router.apis[key].handle(self.broker, context, message)
        return finish(reply) if isinstance(reply, GeneratorType) else reply

    # matching

    def _topics(self, context: Context, message: Any) -> set[str] | None:
        """The topics a request is about; None for all there are."""
        if message is None:
            return set()
        rows = list(_topic_rows(message))
        if None in rows:
            return None
        if context.api_key == FETCH:
            session = self.broker.fetch_sessions.find(getattr(message, "session_id", 0))
            rows += [wanted.topic for wanted in session.wanted] if session is not None else []
        return {name for row in rows if (name := self._topic_name(row))}

    def _topic_name(self, row: str | UUID | None) -> str:
        if isinstance(row, UUID):
            topic = self.broker.catalog.topic_by_id(row)
            return topic.name if topic is not None else ""
        return row or ""


def _topic_rows(message: Any) -> Iterator[str | UUID | None]:
    """Name or id of each topic a request is about; None where it is about all."""
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name.startswith("topic") and classify_field(field).is_array:
            if value is None:
                yield None
            for row in value or ():
                yield row if isinstance(row, str) else _topic_of(row)
        elif field.name == "resources":
            yield from (row.resource_name for row in value if row.resource_type == _TOPIC_RESOURCE)
        elif field.name == "groups":
            for group in value:
                if is_dataclass(group):
                    yield from _topic_rows(group)


def _topic_of(row: Any) -> str | UUID:
    found = getattr(row, "name", None) or getattr(row, "topic", None) or getattr(row, "topic_id", None)
    return found if isinstance(found, str | UUID) else ""
