"""One connection to one broker: requests are pipelined, replies are matched by correlation id.

Small replies are copied out of one scratch buffer. A large reply (a fetch) is read from the socket directly into a
buffer of its own. The connection uses this buffer again when no other code has a view of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from odradek._version import __version__
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.refcount import has_only_references
from odradek.net import transports
from odradek.net.direct_exchange import FIRST_DIRECT_ID, DirectExchange, Sent
from odradek.net.errors import (
    BrokerUnreachable,
    ConnectionLost,
    ReplyTooLarge,
    UnsupportedVersion,
    unreadable,
)
from odradek.net.failure_texts import expected_listener, plain_reason, tls_failure
from odradek.net.transports import RECEIVE_BYTES, Address
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, JOIN_GROUP, SYNC_GROUP

if TYPE_CHECKING:
    from odradek.net.transports import Connect
    from odradek.wire.api_keys import ApiKey

T = TypeVar("T")
logger = logging.getLogger("odradek.client")

SCRATCH_BYTES = 65_536
NO_REPLY_BYTES = 1 << 30
"""No broker sends a larger reply: a length above this means that the bytes are not a length."""
KEPT_BYTES = 5 << 20
KEPT_REPLIES = 4
"""The connection keeps at most KEPT_REPLIES buffers of at most KEPT_BYTES each for later large replies."""
_LARGE_BYTES = 1 << 20
_TLS_ALERTS = (0x150301, 0x150302, 0x150303)
"""The first bytes of TLS's reply to other protocols: an alert, and the version."""
_HTTP = int.from_bytes(b"HTTP", "big")
SILENCE_S = 3.0
"""A request without a reply is logged after this time, and after the time for which the broker may hold its reply."""
_LOG_EVERY_S = 60.0
_HELD = frozenset({JOIN_GROUP, SYNC_GROUP})
"""Requests that wait for the other members of a group."""
_SOFTWARE = {"client_software_name": "odradek", "client_software_version": __version__}
_REPLY_BEFORE_THROTTLE_FROM = {
    0: 6, 1: 8, 2: 3, 3: 6, 8: 4, 9: 4, 10: 2, 11: 3, 12: 2, 13: 2, 14: 2, 15: 2, 16: 2, 18: 2, 19: 3, 20: 2, 21: 1,
    22: 1, 24: 1, 25: 1, 26: 1, 28: 1, 32: 2, 33: 1, 37: 1, 42: 1,
}  # fmt: skip
"""By API key, the first version whose reply the broker sends before it throttles (KIP-219), as in
``shouldClientThrottle`` of the Java client. In older versions the throttle time has passed when the reply arrives.
For APIs that are not listed, the broker replies first in all versions."""


class ReplySink(Protocol):
    """The receiver of a reply or of an error, usually a future."""

    def done(self) -> bool: ...
    def set_result(self, frame: memoryview, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class Access(Protocol):
    """What a connection needs before its first request: TLS and a login. A plain listener needs none."""

    def tls(self) -> ssl.SSLContext | None:
        """Returns the TLS context of a new connection; None for a listener without TLS. Raises ConfigError."""

    async def log_in(self, connection: BrokerConnection) -> float | None:
        """Logs in on a connection, for the first time or again.

        Returns the seconds until the broker ends the connection, unless the client logs in again; None for no end.
        Raises AuthenticationFailed, ConnectionLost."""


class BrokerConnection(asyncio.BufferedProtocol):
    """A connection for one event loop: ``await BrokerConnection.open(...)``, then ``call``.

    A request that times out closes the connection, because a late reply would need special treatment. The timer of a
    cancelled request continues, so that the connection detects a broker that no longer replies.
    """

    def __init__(
        self, address: Address, client_id: str, request_timeout_ms: int, max_reply_bytes: int = RECEIVE_BYTES
    ) -> None:
        self.address = address
        self._max_reply_bytes = max_reply_bytes
        self.client_id = client_id
        self._timeout_s = request_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._next_id = 0
        self._first_id = 0  # the correlation id of the first request after the negotiation of versions
        self.waiting: dict[int, tuple[ReplySink, asyncio.TimerHandle]] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The cluster's finalized features with their levels, from the start of this connection or the last
        ``refresh_features``."""
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._start = self._end = 0
        self._large: memoryview | None = None
        self._filled = 0
        self.kept: list[Any] = []
        self._lost: str | None = None
        self._throttled_until_s = self._logged_s = float("-inf")
        self._access: Access | None = None
        self._held: list[bytes] | None = None
        """Requests that wait until the client has logged in again; None at any other time."""
        self._login: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._tls_error: ssl.SSLError | None = None
        self._is_plain = False  # whether the connection is open and has no TLS
        self.direct: DirectExchange | None = None
        """The exchanges on threads of callers, since the first ``lend``."""
        self._is_explained = False  # whether the first reply has shown what the peer is
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        setup_timeout_ms: int = 10_000,
        max_reply_bytes: int = RECEIVE_BYTES,
        access: Access | None = None,
        connect: Connect = transports.connect,
    ) -> BrokerConnection:
        """Connects, negotiates API versions and logs in.

        Raises BrokerUnreachable: ``cannot reach HOST:PORT: reason``. Raises AuthenticationFailed. Raises
        UnsupportedVersion or another KafkaError if the broker refuses ApiVersions, and ConfigError for wrong TLS
        settings.
        """
        if not 0 < address.port < 1 << 16:  # some event loops would connect to the port modulo 65536
            raise BrokerUnreachable(f"cannot reach {address}: the port number is out of range")
        connection: BrokerConnection | None = None
        context = access.tls() if access is not None else None
        name = address.host if context is not None else None
        try:
            async with asyncio.timeout(setup_timeout_ms / 1000):
                _, connection = await connect(
                    lambda: cls(address, client_id, request_timeout_ms, max_reply_bytes),
                    address.host,
                    address.port,
                    ssl=context,
                    server_hostname=name,
                )
                await connection._negotiate()
                connection._first_id = connection._next_id + 1
                if access is not None:
                    connection._access = access
                    connection._log_in_before(await access.log_in(connection))
            connection._is_plain = context is None
            return connection
        except TimeoutError:
            reason = f"no reply within {setup_timeout_ms} ms{f' ({expected_listener(context)})' if context else ''}"
        except ssl.SSLError as error:
            raise tls_failure(address, error) from error
        except OSError as error:
            reason = plain_reason(error)
            if context is not None and isinstance(error, ConnectionResetError):
                reason += f" ({expected_listener(context)})"
        except ConnectionLost as error:
            if connection is not None and connection._tls_error is not None:
                raise tls_failure(address, connection._tls_error) from error
            is_explained = connection is not None and connection._is_explained
            reason = str(error) if is_explained else f"{error} ({expected_listener(context)})"
        except (ValueError, OverflowError) as error:
            reason = f"its reply is not that of a Kafka broker: {error}"
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if connection is not None:
            connection.close()
        raise BrokerUnreachable(f"cannot reach {address}: {reason}")

    @property
    def closed(self) -> bool:
        return self._lost is not None

    def close(self) -> None:
        self._fail("closed by the client")

    # --- requests ---------------------------------------------------------------------------------------------

    def version(self, api_key: int, ceiling: int | None = None) -> int:
        """Returns the newest version that both sides support, at most ``ceiling``. Raises UnsupportedVersion."""
        ours_low, ours_high = schemas.known_versions(api_key)
        if ceiling is not None:
            ours_high = min(ours_high, ceiling)
        low, high = self._versions.get(api_key, (0, -1))
        version = min(high, ours_high)
        if version < max(low, ours_low):
            has = f"supports only versions {low} to {high} of" if high >= 0 else "does not support"
            raise UnsupportedVersion(f"{self.address} {has} {schemas.api_name(api_key)}")
        return version

    def supports(self, api_key: int, version: int = 0) -> bool:
        """Returns whether the broker supports ``version`` or a newer version of an API."""
        return self._versions.get(api_key, (0, -1))[1] >= version

    async def call(
        self, api_key: ApiKey[T], message: Mapping[str, object], *, ceiling: int | None = None,
        timeout_ms: int | None = None,
    ) -> T:  # fmt: skip
        """Sends a request and returns the decoded reply. Raises ConnectionLost, ReplyTooLarge, UnsupportedVersion, and
        KeyError for an unknown ``api_key``."""
        version = self.version(api_key, ceiling)
        data = await self.exchange(api_key, version, message, timeout_ms=timeout_ms)
        return self.decoded(api_key, version, data)

    async def read(
        self,
        api_key: int,
        message: Mapping[str, object],
        read: Callable[[int, memoryview], Generator[None, None, T]],
        *,
        ceiling: int | None = None,
    ) -> tuple[int, T]:
        """Sends a request, reads its reply in steps and returns (version, result). The event loop runs between steps.

        ``read(version, data)`` raises ValueError for bytes that it cannot read. Raises ConnectionLost, ReplyTooLarge,
        UnsupportedVersion.
        """
        version = self.version(api_key, ceiling)
        steps = read(version, await self.exchange(api_key, version, message))
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return version, ended.value
            except ValueError as error:
                raise self._unreadable(error) from error
            await asyncio.sleep(0)

    def decoded(self, api_key: ApiKey[T], version: int, data: memoryview) -> T:
        """Returns the message of a reply, and notes its throttle time. Raises ConnectionLost, ReplyTooLarge."""
        try:
            reply: T = frames.decode_reply(api_key, version, data)[1]
        except ValueError as error:
            raise self._unreadable(error) from error
        if throttle_time := getattr(reply, "throttle_time", None):
            self.note_throttle_time(api_key, version, schemas.milliseconds(throttle_time))
        return reply

    def _unreadable(self, error: ValueError) -> ConnectionLost | ReplyTooLarge:
        self._fail(f"sent a reply that cannot be read: {error}")
        return unreadable(self.address, error)

    def note_throttle_time(self, api_key: int, version: int, throttle_ms: int) -> None:
        """Notes the throttle time of a reply: the broker reads nothing from this connection for that long."""
        if throttle_ms > 0 and version >= _REPLY_BEFORE_THROTTLE_FROM.get(api_key, 0):
            # uvloop's clock stands still during one iteration of the loop. With uvloop's clock the throttle time would
            # end too early.
            self._throttled_until_s = max(self._throttled_until_s, time.monotonic() + throttle_ms / 1000)

    @property
    def throttle_left_s(self) -> float:
        """Returns the seconds for which the broker still does not read from this connection because of a quota, or 0.

        The timeout of a request that is sent during these seconds starts when they are over."""
        return max(0.0, self._throttled_until_s - time.monotonic())

    async def exchange(
        self, api_key: int, version: int, message: Mapping[str, object] | bytes, *, timeout_ms: int | None = None,
        is_login: bool = False,
    ) -> memoryview:  # fmt: skip
        """Sends a request (fields or encoded bytes) and returns the reply's bytes, correlation id first. A request of a
        login (``is_login``) does not wait until the client has logged in again."""
        future: asyncio.Future[memoryview] = self._loop.create_future()
        self.send(api_key, version, message, future, timeout_ms=timeout_ms, is_login=is_login)
        return await future

    def send(
        self, api_key: int, version: int, message: Mapping[str, object] | bytes, reply: ReplySink, *,
        timeout_ms: int | None = None, is_login: bool = False, held_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Sends a request as ``exchange`` does, but returns at once.

        ``reply`` gets the bytes or the error in a later iteration of the loop. ``held_s``: the time for which the
        request allows the broker to hold its reply back. Raises ConnectionLost if the request cannot be sent; then
        ``reply`` gets nothing."""
        transport, correlation_id = self._next_request()
        data = frames.encode_request(api_key, version, correlation_id, self.client_id, message)
        self._await_reply(api_key, correlation_id, reply, timeout_ms, held_s)
        if self.direct is not None and self.direct.hold(data):
            return
        if self._held is None or is_login:
            transport.write(data)
        else:
            self._held.append(data)

    def _await_reply(
        self, api_key: int, correlation_id: int, reply: ReplySink, timeout_ms: int | None = None, held_s: float = 0.0
    ) -> None:
        """Registers the receiver of a reply, and the timer of its request."""
        limit_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        silent_s = SILENCE_S + held_s
        if silent_s < limit_s and api_key not in _HELD:
            timer = self._loop.call_later(silent_s, self._on_silence, correlation_id, api_key, limit_s, silent_s)
        else:
            timer = self._loop.call_later(limit_s, self.on_timeout, correlation_id, api_key, limit_s)
        self.waiting[correlation_id] = (reply, timer)

    def lend(self) -> None:
        """Lends the I/O to the threads of callers (``direct``) until the loop sends a request, if it is idle now: no
        request and no reply is on the way, and nothing waits for a login or for the end of a throttle time."""
        idle = not self.waiting and self._held is None and self._start == self._end and self._large is None
        if not idle or not self._is_plain or self._lost is not None or self.throttle_left_s > 0:
            return
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > 0 or isinstance(self._login, asyncio.Task):
            return
        if self.direct is None:
            self.direct = DirectExchange(self, self._loop)
        self.direct.lend(transport)

    def adopt(self, request: Sent | None, data: Sequence[bytes], received: bytes) -> None:
        """Continues after the exchange of a caller: waits for the reply to its ``request`` if there is one left, writes
        ``data``, and reads what the caller has ``received``."""
        if self._lost is not None:
            if request is not None:
                request.reply.set_exception(ConnectionLost(f"{self.address} {self._lost}"))
            return
        assert self._transport is not None
        if request is not None:
            self._await_reply(request.api_key, request.correlation_id, request.reply)
        for part in data:
            if part:
                self._transport.write(part)
        while received and self._lost is None:
            room = self.get_buffer(-1)
            taken = received[: len(room)]
            room[: len(taken)] = taken
            self.buffer_updated(len(taken))
            received = received[len(taken) :]
        if self._lost is None:
            self._transport.resume_reading()

    def end(self, reason: str) -> None:
        """Closes the connection for a reason, which the errors of waiting requests have."""
        self._fail(reason)

    async def post(self, api_key: int, version: int, message: Mapping[str, object]) -> None:
        """Sends a request that has no reply and waits until the operating system has taken all of its bytes.

        Raises ConnectionLost; some of the bytes may have been sent.
        """
        if isinstance(self._login, asyncio.Task):
            await asyncio.wait([self._login])
        while self.direct is not None and not self.direct.take_back():
            await asyncio.sleep(0.001)
        transport, correlation_id = self._next_request()
        transport.set_write_buffer_limits(high=0)
        transport.write(frames.encode_request(api_key, version, correlation_id, self.client_id, message))
        await self._writable.wait()
        if self._lost is not None:
            raise ConnectionLost(f"{self.address} {self._lost}")

    def _next_request(self) -> tuple[asyncio.Transport, int]:
        if self._lost is not None or self._transport is None:
            raise ConnectionLost(f"{self.address} {self._lost}")
        self._next_id = (self._next_id + 1) & (FIRST_DIRECT_ID - 1)
        return self._transport, self._next_id

    def _on_silence(self, correlation_id: int, api_key: int, limit_s: float, silent_s: float) -> None:
        """Logs that the oldest request has no reply, at most once a minute, and waits for the rest of its time.

        Replies have the order of requests, so later requests only wait for this one."""
        if correlation_id not in self.waiting:
            return
        now = time.monotonic()
        is_oldest = next(iter(self.waiting)) == correlation_id
        if is_oldest and now > self._throttled_until_s + silent_s and now > self._logged_s + _LOG_EVERY_S:
            self._logged_s = now
            logger.warning(
                "%s: no answer to %s for %.3g s; waiting up to %.0f s",
                self.address, schemas.api_name(api_key), silent_s, limit_s,
            )  # fmt: skip
        timer = self._loop.call_later(limit_s - silent_s, self.on_timeout, correlation_id, api_key, limit_s)
        self.waiting[correlation_id] = (self.waiting[correlation_id][0], timer)

    def on_timeout(self, correlation_id: int, api_key: int, limit_s: float) -> None:
        left_s = self._throttled_until_s + limit_s - time.monotonic()
        if left_s > 0 and correlation_id in self.waiting:  # throttling delayed the broker's read of the request
            timer = self._loop.call_later(left_s, self.on_timeout, correlation_id, api_key, limit_s)
            self.waiting[correlation_id] = (self.waiting[correlation_id][0], timer)
            return
        self._fail(f"did not answer {schemas.api_name(api_key)} within {round(limit_s * 1000)} ms")

    async def _negotiate(self) -> None:
        """Sends ApiVersions in the client's newest version, then if necessary in the newest one that both support.

        A broker that does not know the client's newest version replies in v0 with its own versions (KIP-511)."""
        key = API_VERSIONS
        version = schemas.known_versions(key)[1]
        for _ in range(2):
            data = await self.exchange(key, version, _SOFTWARE)
            code = int.from_bytes(data[4:6], "big", signed=True)
            if code == ErrorCode.unsupported_version.value and version > 0:
                ranges = frames.decode_reply(key, 0, data)[1].api_keys
                version = max([min(version, k.max_version) for k in ranges if k.api_key == key], default=0)
                continue
            reply = frames.decode_reply(key, version, data)[1]
            if reply.error_code is not ErrorCode.none:
                refusal = f"{self.address} refused ApiVersions"
                if reply.error_code is ErrorCode.unsupported_version:
                    raise UnsupportedVersion(refusal)
                raise KafkaError(reply.error_code, refusal)
            self.note_throttle_time(key, version, schemas.milliseconds(getattr(reply, "throttle_time", 0)))
            self._versions = {k.api_key: (k.min_version, k.max_version) for k in reply.api_keys}
            self.features = {f.name: f.max_version_level for f in getattr(reply, "finalized_features", ())}
            return
        raise UnsupportedVersion(f"{self.address} supports no version of ApiVersions that this client knows")

    async def refresh_features(self) -> None:
        """Asks the broker for ``features`` again. Raises what ``call`` raises."""
        reply = await self.call(API_VERSIONS, _SOFTWARE)
        self.features = {f.name: f.max_version_level for f in getattr(reply, "finalized_features", ())}

    # --- logins -----------------------------------------------------------------------------------------------

    def _log_in_before(self, lifetime_s: float | None) -> None:
        """Sets the time of the next login (KIP-368): with a tenth of the session left, as Java's clients do.

        A broker reads the login after the requests before it, and a fetch may wait there for half a second. So a second
        more is left, or a quarter of a short session."""
        self._login = None
        if lifetime_s is not None and self._lost is None:
            wait_s = lifetime_s * random.uniform(0.85, 0.95) - min(1.0, lifetime_s / 4)
            self._login = self._loop.call_later(wait_s, self._begin_login)

    def _begin_login(self) -> None:
        """Logs in again. Later requests wait meanwhile: the broker accepts none between the requests of a login."""
        self._held = []
        self._login = self._loop.create_task(self._log_in_again())

    async def _log_in_again(self) -> None:
        assert self._access is not None
        try:
            lifetime_s = await self._access.log_in(self)
        except (OdradekError, OSError) as error:
            self._fail(f"ended the session: {error}")
            return
        held, self._held = self._held, None
        self._log_in_before(lifetime_s)
        if held and self._transport is not None and self._lost is None:
            self._transport.write(b"".join(held))

    # --- the socket's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self._tls_error = error
        reason = f"closed the connection{f': {plain_reason(error)}' if error else ''}"
        if self._access is None and self._first_id and next(iter(self.waiting), 0) == self._first_id:
            reason += " (is it a listener with SASL? then set security.protocol and sasl.mechanism)"
        self._fail(reason)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._filled :]
        return self._scratch_view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._filled += nbytes
            if self._filled == len(self._large):
                frame, self._large = self._large, None
                self.deliver(frame.toreadonly())
            return
        self._end += nbytes
        self._cut_scratch()

    def _cut_scratch(self) -> None:
        """Delivers the complete frames in the scratch buffer.

        An incomplete frame moves to the front of the scratch buffer, or into a buffer of its own if it is large."""
        scratch = self._scratch
        while self._end - self._start >= 4:
            size = int.from_bytes(scratch[self._start : self._start + 4], "big", signed=True)
            if size < 4 or size > self._max_reply_bytes:
                self._refuse(size)
                return
            body, held = self._start + 4, self._end - self._start - 4
            if held >= size:
                self._start = body + size
                self.deliver(memoryview(bytes(self._scratch_view[body : body + size])))
            elif size + 4 > SCRATCH_BYTES:
                self._large = self.memory_for(size)
                self._large[:held] = self._scratch_view[body : self._end]
                self._filled = held
                self._start = self._end = 0
                return
            else:
                break
        left = self._end - self._start
        if self._start:
            scratch[:left] = scratch[self._start : self._end]
            self._start, self._end = 0, left

    def _refuse(self, size: int) -> None:
        """Closes the connection because of a reply size that is not allowed.

        The oldest request fails with ReplyTooLarge if the size is plausible. Before the versions are negotiated no
        large size is plausible: the peer is probably not a Kafka broker."""
        reason = f"announced a reply of {size} bytes"
        if not self._versions and size >> 8 in _TLS_ALERTS:
            reason = "is a listener with TLS: set security.protocol to SSL or SASL_SSL"
            self._is_explained = True
        elif not self._versions and size == _HTTP:
            reason = "answers by HTTP: it is no Kafka broker"
            self._is_explained = True
        elif not self._versions and (begin := size.to_bytes(4, "big", signed=True).decode("latin-1")).isprintable():
            reason = f"answers with a text that begins with {begin!r}: it is no Kafka broker"
            self._is_explained = True
        if 4 <= size <= NO_REPLY_BYTES and self._versions and self.waiting:
            bound = f"receive_message_max_bytes allows at most {self._max_reply_bytes}"
            reply, timer = self.waiting.pop(next(iter(self.waiting)))  # replies have the order of requests
            timer.cancel()
            if not reply.done():
                reply.set_exception(ReplyTooLarge(f"{self.address} {reason}: {bound}"))
        self._fail(reason)

    def memory_for(self, size: int) -> memoryview:
        """Returns a buffer for a large reply: a kept buffer of which no other code holds a view, or a new one.

        The operating system clears new memory page by page, which takes as long as receiving the reply."""
        for kept in self.kept:
            if len(kept) >= size and has_only_references(kept, 2):  # the list and this name
                return memoryview(kept)[:size]
        memory = _allocate(size + size // 8)
        if len(memory) <= KEPT_BYTES:
            self.kept = [memory, *self.kept[: KEPT_REPLIES - 1]]
        return memoryview(memory)[:size]

    def deliver(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        reply, timer = self.waiting.pop(correlation_id, (None, None))
        if reply is None or timer is None:
            self._fail(f"answered a request that was never sent (correlation id {correlation_id})")
            return
        timer.cancel()
        if not reply.done():
            reply.set_result(frame)

    def _fail(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._login is not None:
            self._login.cancel()
        self._writable.set()
        if self.direct is not None:
            self.direct.on_lost()
        if self._transport is not None:
            self._transport.abort()
        waiting, self.waiting = self.waiting, {}
        for reply, timer in waiting.values():
            timer.cancel()
            if not reply.done():
                reply.set_exception(ConnectionLost(f"{self.address} {reason}"))


def _allocate(size: int) -> Any:
    """Allocates a buffer: a numpy array if it is large and numpy is loaded, as in processes that decode records.

    Python would zero a large bytearray, which blocks all other threads for 1 to 2 ms."""
    if size < _LARGE_BYTES or (numpy := sys.modules.get("numpy")) is None:
        return bytearray(size)
    return numpy.empty(size, numpy.uint8)
