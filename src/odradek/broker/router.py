"""From a frame to its handler and from a handler's answer to bytes.

What is advertised is what ``handlers.SERVED`` lists and nothing else: an API without a handler does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any

from odradek.broker.deferred import Deferred
from odradek.broker.handlers import ADVERTISED_OLDEST, SERVED
from odradek.broker.quotas import REQUEST_PERCENTAGE
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire import schemas
from odradek.wire.frames import API_VERSIONS, FrameError, RequestHead, read_request_head, response_head
from odradek.wire.hot_log import Chunk, throttled
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from odradek.broker.connection import Connection
    from odradek.broker.faults import Faults
    from odradek.broker.server import BrokerServer

log = logging.getLogger("odradek.broker")

Reply = Mapping[str, Any] | bytes | list[Chunk] | None
Handle = Callable[[Any, "Context", Any], "Reply | Deferred[Reply]"]


OFFSET_FETCH = 9
KEPT_FROM_BYTES, KEPT_BYTES_AT_MOST = 2048, 512 << 10

ANONYMOUS = "ANONYMOUS"
"""The user of a client that has not said who it is, as Kafka calls it."""


class Hangup(Exception):
    """Raised by a handler where Kafka answers by closing the connection; the message says why."""


class Context:
    """Who asks: the request's header and the connection it came on. ``client_host`` is as Kafka prints it.

    ``throttle_ms`` is what the reply says of how long the connection rests (broker/quotas).
    """

    __slots__ = ("api_key", "client_host", "client_id", "connection", "request_bytes", "throttle_ms", "user", "version")

    def __init__(self, head: RequestHead, connection: Connection, request_bytes: int = 0) -> None:
        self.api_key = head.api_key
        self.version = head.version
        self.client_id = head.client_id
        self.client_host = connection.client_host
        self.connection = connection
        self.request_bytes = request_bytes
        self.user = ANONYMOUS
        self.throttle_ms = 0

    def throttle(self, duration_ms: int) -> None:
        """Lets the connection rest: nothing is read from it for that long, and the reply says so."""
        if duration_ms > self.throttle_ms:
            self.throttle_ms = duration_ms
            self.connection.mute(duration_ms)


class Api:
    """One API this broker serves: versions ``oldest`` to ``newest`` of API ``key``."""

    __slots__ = ("advertised_oldest", "handle", "key", "load", "newest", "oldest")

    def __init__(self, key: int, versions: tuple[int, int], handle: Handle) -> None:
        self.key = key
        self.oldest, self.newest = versions
        self.advertised_oldest = ADVERTISED_OLDEST.get(key, self.oldest)
        self.handle = handle
        self.load: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, name: str) -> Api:
        """The API of a handler file, which is loaded with the first request: most brokers never hear of most APIs."""

        def first(broker: Any, context: Context, message: Any) -> Reply | Deferred[Reply]:
            api.load()
            return api.handle(broker, context, message)

        def load() -> None:
            api.handle = import_module(f"odradek.broker.handlers.{name}").handle

        api = cls(int(name[1:3]), SERVED[name], first)
        api.load = load
        return api


class Router:
    """Dispatches the frames of all connections."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self.apis: dict[int, Api] = {}
        self._questions: dict[bytes, Any] = {}
        self.faults: Faults | None = None
        """Set while a test wants requests to fail."""
        for name in SERVED:
            api = Api.of(name)
            self.apis[api.key] = api

    def loaders(self) -> Iterator[Callable[[], None]]:
        """Each loads one API's handler, unless it was loaded by a request."""
        return (api.load for api in self.apis.values())

    def dispatch(self, frame: bytes, connection: Connection) -> list[Chunk] | Deferred[list[Chunk] | None]:
        """Serves one request. The chunks are a whole reply with its length; an empty list sends nothing.

        A Deferred of ``None``, FrameError and Hangup mean: close the connection.
        """
        head = read_request_head(frame)
        api = self.apis.get(head.api_key)
        if api is None:
            raise FrameError(f"request for API {head.api_key}, which is not served")
        if not api.oldest <= head.version <= api.newest:
            if head.api_key != API_VERSIONS:
                raise FrameError(f"version {head.version} of {schemas.api_name(head.api_key)} is not served")
            head, message = head._replace(version=0), None
        else:
            message = self._decode(head, frame)
        try:
            context = Context(head, connection, len(frame))
            if self.faults is not None:
                reply = self.faults.serve(api, context, message)
            elif self._broker.quotas.limited(REQUEST_PERCENTAGE):
                reply = self._timed(api, context, message)
            else:
                reply = api.handle(self._broker, context, message)
        except Hangup:
            raise
        except Exception as error:
            reply = self._reply_to(head, error)
        if isinstance(reply, Deferred):
            if reply.resolved:
                return self._pack(head, context, reply.value)
            return reply.map(lambda value: self._pack_later(head, context, value))
        return self._pack(head, context, reply)

    def _decode(self, head: RequestHead, frame: bytes) -> Any:
        """The message of a frame. Raises ValueError.

        Who watches the offsets of thousands of partitions asks the same again and again: the last such questions are
        kept as they were understood (messages cannot be changed).
        """
        is_question = head.api_key == OFFSET_FETCH and KEPT_FROM_BYTES <= len(frame) <= KEPT_BYTES_AT_MOST
        asked = frame[:4] + frame[head.body :] if is_question else b""
        if is_question and (known := self._questions.get(asked)) is not None:
            return known
        message, _ = schemas.decode(head.api_key, head.version, Kind.REQUEST, frame, head.body)
        if is_question:
            if sum(map(len, self._questions)) + len(asked) > KEPT_BYTES_AT_MOST:
                self._questions.clear()
            self._questions[asked] = message
        return message

    def _timed(self, api: Api, context: Context, message: Any) -> Reply | Deferred[Reply]:
        """Serves a request and counts the time it took towards its client's quota."""
        started = perf_counter()
        try:
            return api.handle(self._broker, context, message)
        finally:
            percents = (perf_counter() - started) * 100
            quotas = self._broker.quotas
            context.throttle(quotas.record(REQUEST_PERCENTAGE, context.user, context.client_id, percents))

    def _pack_later(self, head: RequestHead, context: Context, reply: Any) -> list[Chunk] | None:
        try:
            return self._pack(head, context, reply)
        except Hangup as reason:
            log.info("closing a connection: %s", reason)
            return None
        except Exception:
            log.exception("%s v%d: a reply cannot be made", schemas.api_name(head.api_key), head.version)
            return None

    def _pack(self, head: RequestHead, context: Context, reply: Any) -> list[Chunk]:
        """Raises Hangup where nothing can be said."""
        if reply is None:
            return []
        if isinstance(reply, Hangup):
            raise reply
        if isinstance(reply, Exception):
            reply = self._reply_to(head, reply)
        start = response_head(head.api_key, head.version, head.correlation_id)
        if context.throttle_ms:
            reply = throttled(head.api_key, head.version, reply, context.throttle_ms)
        if isinstance(reply, list):
            size = len(start) + sum(map(len, reply))
            return [size.to_bytes(4, "big") + start, *reply]
        if not isinstance(reply, bytes):
            try:
                reply = schemas.encode(head.api_key, head.version, Kind.RESPONSE, reply)
            except Exception as error:
                log.exception("%s v%d: the reply cannot be packed", schemas.api_name(head.api_key), head.version)
                reply = _refusal(head, ErrorCode.unknown_server_error, "")
                if reply is None:
                    raise Hangup(f"no way to answer: {error}") from error
        return [(len(start) + len(reply)).to_bytes(4, "big") + start + reply]

    def _reply_to(self, head: RequestHead, error: Exception) -> bytes:
        """What a handler's exception becomes. Raises Hangup where the API has no place for a code."""
        if isinstance(error, KafkaError):
            code, text = error.code, error.message
        else:
            log.error("%s v%d failed", schemas.api_name(head.api_key), head.version, exc_info=error)
            code, text = ErrorCode.unknown_server_error, "The server experienced an unexpected error."
        packed = _refusal(head, code, text)
        if packed is None:
            raise Hangup(f"{schemas.api_name(head.api_key)} v{head.version} has no place for {code.name}") from error
        return packed


def _refusal(head: RequestHead, code: ErrorCode, text: str) -> bytes | None:
    """A reply that carries nothing but an error; ``None`` where the version has no top-level code."""
    message: dict[str, Any] = {}
    response = schemas.message_type(head.api_key, head.version, Kind.RESPONSE)
    names = schemas.field_names(response)
    if "error_code" not in names:
        return None
    for field in fields(response):
        if field.default is MISSING:
            message[field.name] = _EMPTY.get(field.metadata.get("kafka_type"), ())
    message |= {"error_code": code, "error_message": text}
    message.pop("throttle_time", None)
    return schemas.encode(head.api_key, head.version, Kind.RESPONSE, message)


_EMPTY: dict[str | None, Any] = {
    "string": "", "int8": 0, "int16": -1, "int32": -1, "int64": -1, "bool": False, "uuid": None,
}  # fmt: skip
