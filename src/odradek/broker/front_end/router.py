"""The router: it passes a frame through the middlewares to its handler, and packs the handler's reply.

The files of ``handlers`` define the advertised APIs. An API without a handler does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import partial
from importlib import import_module
from time import perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar, cast

from odradek.broker.handlers import HandlerFile, handler_files
from odradek.broker.handlers.api import Context, Handle, Later, Reply
from odradek.broker.handlers.middleware import CountTime, Middleware, Serve, chain, time_counter
from odradek.broker.limits.reply_memory import MAX_REPLY_BYTES, Hangup
from odradek.broker.limits.request_elements import FEW_ELEMENTS
from odradek.broker.loop.scheduler import SHARE_S, Steps, Task
from odradek.broker.settings.listener import CLIENT
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.segments.slice import Slice
from odradek.wire import schemas
from odradek.wire.chunks import Chunk
from odradek.wire.frames import FrameError, RequestHead, read_request_head, reply_head
from odradek.wire.request_limits import ImpossibleCount, TooManyElements
from odradek.wire.schemas import Kind
from odradek.wire.throttle_time import with_throttle_time

if TYPE_CHECKING:
    from odradek.broker.handlers.api import Abandonable, BrokerServices, Client, ServedApi
    from odradek.broker.limits.request_elements import Share

T = TypeVar("T")
Outcome: TypeAlias = "Reply | Exception"
"""What a promise of a reply holds at its end."""
log = logging.getLogger("odradek.broker")

LONG_REPLY_BYTES = 256 << 10
"""Shorter replies do not count towards the memory for replies."""
KEPT_FROM_BYTES, KEPT_BYTES_AT_MOST = 2048, 512 << 10

BYTES_AT_ONCE = 2 << 20
"""A longer request is parsed in steps, whatever its number of elements. Producers' default requests are shorter."""

SMALL_BYTES = 2048
"""The elements of a shorter request do not count towards the limit of all requests."""

_LONG = object()


class Api:
    """A served API: versions ``oldest`` to ``newest`` of API ``key``. ``handlers`` documents the other attributes."""

    __slots__ = (
        "advertised_oldest", "handle", "keeps_requests", "key", "load", "newest", "oldest", "replies_to_any_version",
        "waits_for_others",
    )  # fmt: skip

    def __init__(self, key: int, versions: tuple[int, int], handle: Handle) -> None:
        self.key = key
        self.oldest, self.newest = versions
        self.advertised_oldest = self.oldest
        self.replies_to_any_version = self.keeps_requests = self.waits_for_others = False
        self.handle = handle
        self.load: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, file: HandlerFile, listener: str = CLIENT) -> Api:
        """Returns the API of a handler file on a kind of listeners. ``load`` or the first request imports the file."""

        def first(broker: BrokerServices, context: Context, message: object) -> Later | Steps[Later]:
            api.load()
            return api.handle(broker, context, message)

        def load() -> None:
            module = import_module(f"odradek.broker.handlers.{file.name}")
            api.handle = getattr(module, f"handle_at_{listener}", module.handle)

        api = cls(file.key, file.versions, first)
        api.advertised_oldest = file.advertised_oldest
        api.replies_to_any_version, api.keeps_requests = file.replies_to_any_version, file.keeps_requests
        api.waits_for_others = file.waits_for_others
        api.load = load
        return api


def served_apis(listener: str = CLIENT) -> dict[int, Api]:
    """Returns the APIs of the handler files that name this kind of listener, by key."""
    return {file.key: Api.of(file, listener) for file in handler_files(listener)}


class Router:
    """Passes the frames of all connections to ``apis``."""

    def __init__(self, broker: BrokerServices, apis: Mapping[int, Api]) -> None:
        self._broker = broker
        self.apis = apis
        self._messages: dict[bytes, object] = {}
        self._middlewares: tuple[Middleware, ...] = ()
        self.has_middleware = False
        self.serve: Serve = self._call
        """Serves a request by the middlewares and the handler. Raises the errors of the handler."""
        self._is_wrapped = False  # whether a middleware overrides ``serve``
        self._count_time: CountTime | None = None

    def loaders(self) -> Iterator[Callable[[], None]]:
        """Yields functions that import the schemas, and the handlers of frequently used APIs. A handler is imported
        only once."""
        yield schemas.load
        yield from (self.apis[file.key].load for file in handler_files(CLIENT) if file.is_frequent)

    # --- middlewares --------------------------------------------------------------------------------------------

    def install(self, middleware: Middleware) -> None:
        """Inserts a middleware before the others, unless it is installed."""
        if middleware not in self._middlewares:
            self._apply((middleware, *self._middlewares))

    def remove(self, middleware: Middleware) -> None:
        """Removes a middleware, if it is installed."""
        if middleware in self._middlewares:
            self._apply(tuple(installed for installed in self._middlewares if installed is not middleware))

    def _apply(self, middlewares: tuple[Middleware, ...]) -> None:
        self._middlewares = middlewares
        self.has_middleware = bool(middlewares)
        self.serve = chain(middlewares, self._call)
        self._is_wrapped = self.serve != self._call
        self._count_time = time_counter(middlewares)

    # --- serving ------------------------------------------------------------------------------------------------

    def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
        """Serves one request. The chunks are a whole reply with its length. An empty list means that there is no reply.

        The caller closes the connection after a Deferred of ``None``, a ValueError (FrameError is one) or a Hangup.
        """
        head = read_request_head(frame)
        api = self.apis.get(head.api_key)
        if api is None:
            raise FrameError(f"a request for API {head.api_key}, which this broker does not serve")
        if not api.oldest <= head.version <= api.newest:
            if not api.replies_to_any_version:
                raise FrameError(
                    f"a request in version {head.version} of {schemas.api_name(head.api_key)}, which this broker does "
                    "not serve"
                )
            head, message, count = head._replace(version=api.oldest), None, 0
        else:
            message, count = self._decode(api, head, frame)
        try:
            context = Context(head, connection, len(frame))
            context.elements = count
            if message is _LONG:
                reply = self._run(self._serve_in_steps(api, context, head, frame), context)
            else:
                reply = self.serve(api, context, message)
        except Hangup:
            raise
        except Exception as error:
            reply = self._reply_to(head, error)
        if isinstance(reply, Deferred):
            if reply.resolved and not _is_long(reply.value, context):
                return self._pack(head, context, reply.value)
            packed: Deferred[list[Chunk] | None] = Deferred()
            reply.then(lambda value: self._keep_promise(head, context, value, packed))
            return packed
        return self._pack(head, context, reply)

    def _decode(self, api: Api, head: RequestHead, frame: bytes) -> tuple[object, int]:
        """Returns the message of a frame and the number of its elements. Raises ValueError.

        Instead of the message, it returns ``_LONG`` if the request has to be parsed in steps. The number is 0 for a
        short frame and for a known message.

        For some APIs, clients repeat the same long request. The router keeps the last parsed messages of these APIs.
        Messages are immutable.
        """
        key = _request_key(head, frame) if api.keeps_requests else b""
        if key and (message := self._messages.get(key)) is not None:
            return message, 0
        size = len(frame)
        if size > BYTES_AT_ONCE or (size > SMALL_BYTES and self._broker.request_elements.is_full):
            return _LONG, 0
        try:
            message, count = schemas.decode_short(head.api_key, head.version, frame, head.body)
        except TooManyElements:
            return _LONG, 0
        if key:
            self._keep(key, message)
        return message, count if size > SMALL_BYTES else 0

    def _keep(self, key: bytes, message: object) -> None:
        if sum(map(len, self._messages)) + len(key) > KEPT_BYTES_AT_MOST:
            self._messages.clear()
        self._messages[key] = message

    def _serve_in_steps(self, api: Api, context: Context, head: RequestHead, frame: bytes) -> Steps[Later]:
        """Serves a long request. Raises the errors of the handler."""
        elements: list[list[object]] = []
        share: Share | None = None
        memory, size = self._broker.request_memory, len(frame)
        memory.begin(size)
        try:
            count = yield from _hanging_up(schemas.count_in_steps(head.api_key, head.version, frame, head.body))
            if count > FEW_ELEMENTS:
                share = self._broker.request_elements.reserve(count)
                yield share.granted
            reply = yield from self._serve_with(api, context, head, frame, elements)
            if share is not None and isinstance(reply, Deferred) and not api.waits_for_others:
                _keep_until_reply(context.connection, share, reply)
                share = None
            return reply
        finally:
            memory.end(size)
            self._broker.leftovers.add(*elements, then=None if share is None else share.release)

    def _serve_with(
        self, api: Api, context: Context, head: RequestHead, frame: bytes, elements: list[list[object]]
    ) -> Steps[Later]:
        """Serves a long request. ``elements`` gets the message's lists, which are to be freed in steps."""
        decode = schemas.decode_in_steps
        message = yield from _hanging_up(
            decode(head.api_key, head.version, Kind.REQUEST, frame, head.body, kept=elements)
        )
        if api.keeps_requests and (key := _request_key(head, frame)):
            self._keep(key, message)
        if self._is_wrapped:
            return self.serve(api, context, message)
        reply = api.handle(self._broker, context, message)
        served = (yield from reply) if isinstance(reply, Generator) else reply
        return (yield from _packed_if_long(context, served))

    def _call(self, api: ServedApi, context: Context, message: object) -> Reply | Deferred[Reply]:
        """Serves a request by its handler. Raises the errors of the handler.

        A handler that returns a generator gets its first share at once. If work is left, this method returns a promise
        of the reply, and the connection serves nothing else until the promise is resolved.
        """
        count_time = self._count_time
        started_s = perf_counter() if count_time is not None else 0.0
        try:
            reply = api.handle(self._broker, context, message)
        finally:
            if count_time is not None:
                count_time(context, perf_counter() - started_s)
        if type(reply) is bytes:  # the usual reply of frequent requests
            return reply
        if isinstance(reply, GeneratorType):
            return self._run(_with_reply_packed(context, reply), context)
        if _is_long(reply, context):
            return self._run(_packed_if_long(context, reply), context)
        return cast("Later", reply)

    def _run(self, steps: Steps[Later], context: Context) -> Reply | Deferred[Reply]:
        scheduler, connection, count_time = self._broker.scheduler, context.connection, self._count_time
        if context.elements > FEW_ELEMENTS:
            steps = _counted(self._broker.request_elements.take(context.elements), steps)
        task = Task(
            scheduler,
            steps,
            must_finish=lambda: context.must_finish,
            on_share=None if count_time is None else partial(count_time, context),
        )
        has_more = task.run_share(scheduler.clock() + SHARE_S)
        if not task.promise.resolved:
            connection.pause_for(task)
            reply: Deferred[Reply] = Deferred()
            task.promise.then(lambda value: _release(connection, task, value, reply))
            if has_more:
                scheduler.add(task)
            return reply
        value: Later | Exception = task.promise.value
        if isinstance(value, Exception):
            try:
                raise value
            finally:
                del value, task  # otherwise the exception and this frame are a reference cycle with the request
        return value

    def _keep_promise(
        self, head: RequestHead, context: Context, value: Outcome, packed: Deferred[list[Chunk] | None]
    ) -> None:
        """Packs the reply of a resolved promise. A long one is packed in shares while the connection serves requests.

        A connection may have several such replies in progress, but it counts the bytes of only one. So each of them has
        its own limit, ``MAX_REPLY_BYTES``, while it is packed. ``_pack`` then adds its bytes to the connection's count.
        """
        if not _is_long(value, context):
            packed.resolve(self._pack_later(head, context, value))
            return
        parked = context.connection.parked
        task = Task(self._broker.scheduler, _packed_bounded(context, value))

        def keep(reply: Outcome) -> None:
            parked.discard(task)
            packed.resolve(self._pack_later(head, context, reply))

        parked.add(task)  # the client may disconnect
        task.promise.then(keep)
        self._broker.scheduler.add(task)

    def _pack_later(self, head: RequestHead, context: Context, reply: Outcome) -> list[Chunk] | None:
        try:
            return self._pack(head, context, reply)
        except Hangup as reason:
            log.info("closing the connection from %s: %s", context.client_host, reason)
            del reply  # as in _run
            return None
        except Exception:
            log.exception("%s v%d: the reply could not be made", schemas.api_name(head.api_key), head.version)
            return None

    def _pack(self, head: RequestHead, context: Context, reply: Outcome) -> list[Chunk]:
        """Packs a reply, or the reply for an exception. Raises Hangup if the version has no reply for it."""
        if type(reply) is bytes and not context.throttle_ms and len(reply) < LONG_REPLY_BYTES:
            start = reply_head(head.api_key, head.version, head.correlation_id)
            return [(len(start) + len(reply)).to_bytes(4, "big") + start + reply]
        if reply is None:
            return []
        if isinstance(reply, Hangup):
            try:
                raise reply
            finally:
                del reply  # as in _run
        if isinstance(reply, Exception):
            reply = self._reply_to(head, reply)
        start = reply_head(head.api_key, head.version, head.correlation_id)
        if context.throttle_ms:
            reply = with_throttle_time(head.api_key, head.version, reply, context.throttle_ms)
        if isinstance(reply, list):
            size = len(start) + sum(map(len, reply))
            if size >= LONG_REPLY_BYTES:
                context.count_reply(sum([len(chunk) for chunk in reply if not isinstance(chunk, Slice)]))
            return [size.to_bytes(4, "big") + start, *reply]
        if not isinstance(reply, bytes):
            try:
                reply = schemas.encode(head.api_key, head.version, Kind.RESPONSE, reply)
            except Exception as error:
                log.exception("%s v%d: the reply could not be packed", schemas.api_name(head.api_key), head.version)
                reply = refusal_reply(head, ErrorCode.unknown_server_error, "")
                if reply is None:
                    raise Hangup(f"the reply could not be packed: {error}") from error
        if len(reply) >= LONG_REPLY_BYTES:
            context.count_reply(len(reply))
        return [(len(start) + len(reply)).to_bytes(4, "big") + start + reply]

    def _reply_to(self, head: RequestHead, error: Exception) -> bytes:
        """Returns the reply for a handler's exception. Raises Hangup if the version has no top-level error code."""
        if isinstance(error, KafkaError):
            code, text = error.code, error.message
        else:
            log.error("%s v%d failed", schemas.api_name(head.api_key), head.version, exc_info=error)
            code, text = ErrorCode.unknown_server_error, "The server experienced an unexpected error."
        packed = refusal_reply(head, code, text)
        if packed is None:
            raise Hangup(
                f"a reply to {schemas.api_name(head.api_key)} v{head.version} cannot carry the error {code.name}"
            ) from error
        return packed


class _KeptShare:
    """The share of a request whose handler has returned a promise of the reply. A disconnection gives it back."""

    def __init__(self, share: Share) -> None:
        self.abandon = share.release


def _keep_until_reply(connection: Client, share: Share, reply: Deferred[T]) -> None:
    kept = _KeptShare(share)
    connection.parked.add(kept)

    def release(_: object) -> None:
        connection.parked.discard(kept)
        share.release()

    reply.then(release)


def _counted(share: Share, steps: Steps[T]) -> Steps[T]:
    try:
        return (yield from steps)
    finally:
        share.release()


def _hanging_up(steps: Steps[T]) -> Steps[T]:
    """Raises Hangup instead of ValueError. It has no reference to the ValueError, which refers to parsed elements.

    Raises KafkaError (INVALID_REQUEST) instead of ImpossibleCount."""
    try:
        return (yield from steps)
    except ImpossibleCount as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None
    except ValueError as error:
        reason = str(error)
    raise Hangup(reason)


def _request_key(head: RequestHead, frame: bytes) -> bytes:
    """Returns the key of a request whose message the router keeps, or b"" for too short and too long requests."""
    if KEPT_FROM_BYTES <= len(frame) <= KEPT_BYTES_AT_MOST:
        return frame[:4] + frame[head.body :]
    return b""


def _is_long(reply: object, context: Context) -> TypeGuard[dict[str, object]]:
    return type(reply) is dict and schemas.is_long(context.api_key, context.version, Kind.RESPONSE, reply)


def _packed_if_long(context: Context, reply: Reply | Deferred[Reply]) -> Steps[Later]:
    if _is_long(reply, context):
        key, version = context.api_key, context.version
        return [*(yield from schemas.encode_in_steps(key, version, Kind.RESPONSE, reply, context.grow_reply))]
    return reply


def _packed_bounded(context: Context, reply: Mapping[str, object]) -> Steps[list[Chunk]]:
    """Packs a long reply. Its bytes do not count as the connection's. Raises Hangup above ``MAX_REPLY_BYTES``."""
    size = 0

    def grow(by: int) -> None:
        nonlocal size
        size += by
        if size > MAX_REPLY_BYTES:
            raise Hangup(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes")

    return [*(yield from schemas.encode_in_steps(context.api_key, context.version, Kind.RESPONSE, reply, grow))]


def _with_reply_packed(context: Context, steps: Steps[Later]) -> Steps[Later]:
    return (yield from _packed_if_long(context, (yield from steps)))


def _release(connection: Client, task: Abandonable, value: Reply | Deferred[Reply], reply: Deferred[Reply]) -> None:
    """Releases the connection after the end of a task. The task's value is the reply, or the promise of the reply."""
    connection.release(task)
    if isinstance(value, Deferred):
        value.then(reply.resolve)
        connection.serve_waiting()
    else:
        reply.resolve(value)


def refusal_reply(head: RequestHead, code: ErrorCode, text: str) -> bytes | None:
    """Packs a reply that only contains an error, or returns ``None`` if the version has no top-level error code."""
    message: dict[str, object] = {}
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


_EMPTY: dict[str | None, object] = {
    "string": "", "bytes": b"", "int8": 0, "int16": -1, "int32": -1, "int64": -1, "bool": False, "uuid": None,
    "datetime_i64": -1, "timedelta_i32": 0, "timedelta_i64": 0,
}  # fmt: skip
