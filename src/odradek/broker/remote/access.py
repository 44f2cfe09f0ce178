"""How a node reaches the listeners of other nodes that have TLS or logins.

A dialer makes one attempt to connect. Each failure has one reason, in words that name the remedy; ``remote/connection``
logs it and tries again with a pause that grows. A connection that is not logged in carries no request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from odradek.broker.remote.dialer import OTHER_PROTOCOL, reason_of
from odradek.core.errors import ConfigError, ErrorCode
from odradek.security.client_security import ClientSecurity, Login, login_messages
from odradek.security.scram import ScramError
from odradek.security.stores import RenewableContext
from odradek.wire import frames, schemas
from odradek.wire.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from odradek.wire.frames import FrameReader

if TYPE_CHECKING:
    from odradek.broker.loop.world import Connect
    from odradek.broker.remote.dialer import NodeProtocol

LOGIN_BYTES = 1 << 20
"""The longest reply within a login."""
RENEWED_AT = 0.85
"""The part of a session after which a connection is replaced: the least one of Kafka's clients."""
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_OF_CERTIFICATES = ("certificate", "unknown ca", "access denied")


class NodeAccess:
    """The way to the listeners of one kind of nodes. ``listener``: the prefix of its settings, for messages.

    A changed key store or trust store holds for later connections. ``connect``: how this node's world opens
    connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connect: Connect, security: ClientSecurity, listener: str
    ) -> None:
        self.loop = loop
        self.security = security
        self.listener = listener
        self._connect = connect
        self._context = None if security.tls is None else RenewableContext(security.tls)

    def dialer(self, host: str, port: int) -> NodeDialer:
        return NodeDialer(self, host, port)

    async def connect(self, make_protocol: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        """Opens a connection. Raises OSError, ConfigError."""
        await self._connect(make_protocol, host, port, None if self._context is None else self._context.current())

    def reason(self, error: Exception | None) -> str:
        """Returns why a connection could not be opened, or has ended, and the remedy."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not accepted: {error.verify_message.rstrip('.')}: check ssl.truststore of the "
                f"listener {self.listener}, and the names and dates of the certificate"
            )
        if isinstance(error, ssl.SSLError):
            text = (error.reason or str(error)).replace("_", " ").lower()
            if any(word in text for word in _OF_CERTIFICATES):
                return (
                    f"it does not accept this node's certificate ({text}): check ssl.keystore of the listener "
                    f"{self.listener} here, and ssl.truststore there"
                )
            return f"the TLS handshake has failed ({text}): {OTHER_PROTOCOL}"
        is_refused = isinstance(error, ConnectionRefusedError)
        if self.security.tls is not None and isinstance(error, OSError) and not is_refused:
            return f"{reason_of(error) or 'no TLS handshake'}: {OTHER_PROTOCOL}"
        return reason_of(error)


class NodeDialer:
    """``dialer.Dialer``: opens connections to one address, with TLS and a login where the listener asks for them."""

    def __init__(self, access: NodeAccess, host: str, port: int) -> None:
        self._access = access
        self._address = host, port

    def dial(
        self, make_protocol: Callable[[], NodeProtocol], on_failure: Callable[[str], None]
    ) -> Callable[[], object]:
        access = self._access
        login, mechanism = access.security.login, access.security.mechanism
        if not isinstance(login, Login):
            return access.loop.create_task(self._dial(make_protocol, on_failure)).cancel
        attempt = LoginAttempt(access, mechanism, login, make_protocol, on_failure)
        task = access.loop.create_task(self._dial(attempt.protocol, attempt.fail))

        def give_up() -> None:
            task.cancel()
            attempt.give_up()

        return give_up

    def reason(self, error: Exception | None) -> str:
        return self._access.reason(error)

    async def _dial(self, make_protocol: Callable[[], asyncio.Protocol], on_failure: Callable[[str], None]) -> None:
        access = self._access
        try:
            await access.connect(make_protocol, *self._address)
        except (OSError, ConfigError) as error:
            on_failure(access.reason(error))


class LoginAttempt:
    """The login of one connection: SaslHandshake, then SaslAuthenticate until the mechanism is done.

    Then the protocol of ``make_protocol`` gets the connection. ``on_failure`` gets the reason otherwise, once."""

    def __init__(
        self,
        access: NodeAccess,
        mechanism: str,
        login: Login,
        make_protocol: Callable[[], NodeProtocol],
        on_failure: Callable[[str], None],
    ) -> None:
        self.access = access
        self.mechanism, self._login = mechanism, login
        self._make_protocol, self._on_failure = make_protocol, on_failure
        self._messages = login_messages(mechanism, login)
        self._reader = FrameReader(LOGIN_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._has_offered = False
        self._number = 0

    def protocol(self) -> asyncio.Protocol:
        return _LoginProtocol(self)

    def begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        if self._is_over:
            transport.abort()
        else:
            self._send(SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": self.mechanism})

    def give_up(self) -> None:
        """Ends the attempt without a word."""
        if not self._is_over:
            self._is_over = True
            if self._transport is not None:
                self._transport.abort()

    def fail(self, reason: str) -> None:
        if not self._is_over:
            self.give_up()
            self._on_failure(reason)

    def end(self, error: Exception | None) -> None:
        """Notes that the connection has ended before the login."""
        if error is not None:
            self.fail(self.access.reason(error))
        else:
            self.fail(f"it has closed the connection within the login: {OTHER_PROTOCOL}")

    def receive(self, data: bytes) -> NodeProtocol | None:
        """Takes bytes. Returns the protocol of the connection when it is logged in."""
        try:
            for frame in self._reader.feed(data):
                if not self._is_over and (made := self._take(frame)) is not None:
                    return made
        except (ValueError, ScramError) as error:
            self.fail(f"the login by {self.mechanism} has failed: {error}: {OTHER_PROTOCOL}")
        return None

    def _take(self, frame: bytes) -> NodeProtocol | None:
        """Takes a reply. Raises ValueError, ScramError."""
        if not self._has_offered:
            reply: Any = frames.decode_reply(SASL_HANDSHAKE, _HANDSHAKE_VERSION, frame)[1]
            if reply.error_code:
                has = ", ".join(sorted(reply.mechanisms)) or "none"
                self.fail(
                    f"its listener does not have {self.mechanism}; it has {has}: check sasl.enabled.mechanisms there"
                )
                return None
            self._has_offered = True
            self._give(next(self._messages))
            return None
        reply = frames.decode_reply(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, frame)[1]
        if reply.error_code:
            text = (reply.error_message or ErrorCode(reply.error_code).name).rstrip(".")
            setting = f"{self.access.listener}{self.mechanism.lower()}.sasl.jaas.config"
            self.fail(
                f"it refuses the login of {self._login.user!r} by {self.mechanism}: {text}: check username and "
                f"password in {setting}"
            )
            return None
        try:
            self._give(self._messages.send(bytes(reply.auth_bytes)))
        except StopIteration:
            return self._finish(schemas.milliseconds(reply.session_lifetime) / 1000)
        return None

    def _finish(self, lifetime_s: float) -> NodeProtocol:
        self._is_over = True
        made = self._make_protocol()
        if lifetime_s > 0:
            made.limit_session(self.access.loop.time() + lifetime_s * RENEWED_AT)
        assert self._transport is not None
        made.connection_made(self._transport)
        return made

    def _give(self, message: bytes | Callable[[], bytes]) -> None:
        """Sends a message of the mechanism. One that takes long is made in a thread."""
        if isinstance(message, bytes):
            self._send(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": message})
        else:
            self.access.loop.run_in_executor(None, message).add_done_callback(self._on_made)

    def _on_made(self, made: asyncio.Future[bytes]) -> None:
        if made.cancelled() or self._is_over:
            return
        error = made.exception()
        if error is None:
            self._give(made.result())
        else:
            self.fail(f"the login by {self.mechanism} has failed: {error}")

    def _send(self, api_key: int, version: int, message: dict[str, object]) -> None:
        assert self._transport is not None
        self._number += 1
        self._transport.write(frames.encode_request(api_key, version, self._number, None, message))


class _LoginProtocol(asyncio.Protocol):
    """A connection within its login; afterwards it passes everything on."""

    def __init__(self, attempt: LoginAttempt) -> None:
        self._attempt = attempt
        self._inner: NodeProtocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._attempt.begin(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            self._inner = self._attempt.receive(data)
        else:
            self._inner.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._inner is None:
            self._attempt.end(error)
        else:
            self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
