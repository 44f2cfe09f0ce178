"""The faults that are set, and the match of faults to requests."""

from __future__ import annotations

import difflib
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kio.serial._introspect import classify_field

from odradek.broker.fault_injection.error_replies import has_code
from odradek.catalog.state import TOPIC
from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.api_keys import FETCH
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from odradek.broker.handlers.api import BrokerServices, Context, ServedApi

log = logging.getLogger("odradek.broker")

KINDS = ("error", "delay", "disconnect", "drop")
WHEN = ("before", "after")
FIRED_KEPT = 10_000


class Fault:
    """One fault. ``left``: the number of further requests that it hits; None: all until it is cleared."""

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


class FaultHit(NamedTuple):
    """A fault that hit a request. ``topics``: the topics of the request; empty if it is for all topics. ``at_ms``:
    the broker's time."""

    fault: int
    kind: str
    when: str
    api: str
    version: int
    client_id: str | None
    topics: list[str]
    at_ms: int


class FaultRules:
    """The faults that are set, and the requests that they hit."""

    def __init__(self, broker: BrokerServices) -> None:
        self.fired: deque[FaultHit] = deque(maxlen=FIRED_KEPT)
        self._broker = broker
        self._set: list[Fault] = []
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._set)

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
        """Sets a fault and returns its number. Raises ValueError."""
        apis = self._broker.apis
        if kind not in KINDS:
            raise ValueError(f"the kind of a fault is one of {', '.join(KINDS)}, not {kind!r}")
        if when not in WHEN:
            raise ValueError(f"when is 'before' or 'after' the request is served, not {when!r}")
        if times is not None and times < 1:
            raise ValueError(f"times is 1 or more, or None for every request, not {times}")
        if not seconds >= 0:
            raise ValueError(f"a delay is 0 s or more, not {seconds}")
        key = find_api(apis, api)
        if topic is not None and not names_topics(key, apis[key].newest):
            raise ValueError(f"{kafka_name(key)} requests have no topics to match")
        fault = Fault(next(self._numbers), key, kind, when, times)
        if kind == "error":
            fault.code = find_code("" if code is None else code)
            if not has_code(schemas.message_type(key, apis[key].newest, Kind.RESPONSE)):
                raise ValueError(f"the reply to {kafka_name(key)} has no field for an error")
        fault.delay_s, fault.topic, fault.client_id = float(seconds), topic, client_id
        self._set.append(fault)
        return fault.number

    def clear(self) -> None:
        self._set.clear()
        self.fired.clear()

    def pending(self) -> list[int]:
        """Returns the numbers of the faults that are still set."""
        return [fault.number for fault in self._set]

    def match_request(self, context: Context, message: object) -> Fault | None:
        """Returns the first fault that matches a request, or None. Counts the hit and adds it to ``fired``."""
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
                FaultHit(
                    fault.number,
                    fault.kind,
                    fault.when,
                    kafka_name(context.api_key),
                    context.version,
                    context.client_id,
                    sorted(topics or ()),
                    self._broker.now_ms(),
                )
            )
            log.info("fault %d: %s of %s", fault.number, fault.kind, kafka_name(context.api_key))
            return fault
        return None

    def _topics(self, context: Context, message: object) -> set[str] | None:
        """Returns the topics of a request and of its fetch session; None: all topics."""
        if message is None:
            return set()
        rows = list(_topic_rows(message))
        if None in rows:
            return None
        if context.api_key == FETCH:
            session = self._broker.fetch_sessions.find(getattr(message, "session_id", 0))
            rows += [wanted.topic for wanted in session.wanted] if session is not None else []
        return {name for row in rows if (name := self._topic_name(row))}

    def _topic_name(self, row: str | UUID | None) -> str:
        if isinstance(row, UUID):
            topic = self._broker.catalog.topic_by_id(row)
            return topic.name if topic is not None else ""
        return row or ""


# --- names in a test ----------------------------------------------------------------------------------------------


def kafka_name(api_key: int) -> str:
    """Returns Kafka's name of an API: ``OffsetCommit`` for 8."""
    return "".join(part.capitalize() for part in schemas.api_name(api_key).split("_"))


def find_api(apis: Mapping[int, ServedApi], name: str | int) -> int:
    """Returns the key of a served API. ``name``: Kafka's name in any case, with or without underscores, or the key.

    Raises ValueError with the nearest name.
    """
    if isinstance(name, int) and name in apis:
        return name
    served = {kafka_name(key): key for key in apis}
    plain = {known.lower(): key for known, key in served.items()}
    asked = str(name).replace("_", "").lower()
    if asked in plain:
        return plain[asked]
    near = difflib.get_close_matches(asked, plain, n=1)
    hint = f"; did you mean {kafka_name(plain[near[0]])!r}?" if near else ""
    raise ValueError(f"no API {name!r} is served{hint}")


def find_code(name: str | int) -> ErrorCode:
    """Returns an error code by Kafka's name or number. Raises ValueError with the nearest name."""
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


# --- the topics of a request --------------------------------------------------------------------------------------


def names_topics(api_key: int, version: int) -> bool:
    """Returns whether requests of this API have topics."""
    return _has_topics(schemas.message_type(api_key, version, Kind.REQUEST))


def _has_topics(entity: Any) -> bool:
    for field in fields(entity):
        kind = classify_field(field)
        if kind.is_array and (field.name.startswith("topic") or field.name == "resources"):
            return True
        if field.name == "groups" and is_dataclass(kind.type_) and _has_topics(kind.type_):
            return True
    return False


def _topic_rows(message: Any) -> Iterator[str | UUID | None]:
    """Yields the name or id of each topic of a request; yields None if the request is for all topics."""
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name.startswith("topic") and classify_field(field).is_array:
            if value is None:
                yield None
            for row in value or ():
                yield row if isinstance(row, str) else _topic_of(row)
        elif field.name == "resources":
            yield from (row.resource_name for row in value if row.resource_type == TOPIC)
        elif field.name == "groups":
            for group in value:
                if is_dataclass(group):
                    yield from _topic_rows(group)


def _topic_of(row: object) -> str | UUID:
    topic = getattr(row, "name", None) or getattr(row, "topic", None) or getattr(row, "topic_id", None)
    return topic if isinstance(topic, str | UUID) else ""
