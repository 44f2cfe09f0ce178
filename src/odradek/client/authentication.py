"""TLS and SASL logins of a client's connections, for the settings of ``security.client_security``."""

from __future__ import annotations

import asyncio
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from odradek.core.errors import ErrorCode
from odradek.net.connection import BrokerConnection
from odradek.net.errors import AuthenticationFailed, ConnectionLost
from odradek.security.client_security import ClientSecurity, LoginMessages, TokenSource, login_messages
from odradek.security.scram import ScramError
from odradek.security.stores import RenewableContext
from odradek.wire import frames, schemas
from odradek.wire.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE

if TYPE_CHECKING:
    from odradek.wire.api_keys import ApiKey

T = TypeVar("T")


@lru_cache(maxsize=64)
def access_of(security: ClientSecurity) -> ClientAccess:
    """Returns the access of all clients of this process that have these settings: they share a TLS context."""
    return ClientAccess(security)


class ClientAccess:
    """TLS and the login of one client. A changed key store or trust store holds for later connections."""

    def __init__(self, security: ClientSecurity) -> None:
        self._security = security
        self._context = None if security.tls is None else RenewableContext(security.tls)

    def tls(self) -> ssl.SSLContext | None:
        return None if self._context is None else self._context.current()

    async def log_in(self, connection: BrokerConnection) -> float | None:
        login, mechanism = self._security.login, self._security.mechanism
        if login is None:
            return None
        exchange = _Exchange(connection, mechanism)
        await exchange.begin()
        if isinstance(login, TokenSource):
            await _log_in_with_token(exchange, login)
        else:
            await _log_in_with_password(exchange, login_messages(mechanism, login))
        return exchange.lifetime_s


def _secret_of(mechanism: str) -> str:
    """Returns the settings that a refused login may have wrong."""
    if mechanism == "OAUTHBEARER":
        return "the token of sasl.oauthbearer.token.endpoint.url"
    return "user and password (sasl.jaas.config, or sasl.username and sasl.password)"


class _Exchange:
    """The requests of one login: SaslHandshake, then SaslAuthenticate until the mechanism is done."""

    def __init__(self, connection: BrokerConnection, mechanism: str) -> None:
        self._connection = connection
        self._mechanism = mechanism
        self.lifetime_s: float | None = None

    async def begin(self) -> None:
        """Names the mechanism. Raises AuthenticationFailed."""
        reply = await self._ask(SASL_HANDSHAKE, {"mechanism": self._mechanism})
        if reply.error_code is ErrorCode.none:
            return
        where = self._connection.address
        if reply.error_code is ErrorCode.unsupported_sasl_mechanism:
            has = ", ".join(sorted(reply.mechanisms)) or "none"
            reason = f"{where} does not support sasl.mechanism={self._mechanism}; it supports {has}"
        elif reply.error_code is ErrorCode.illegal_sasl_state:
            reason = f"{where} is a listener without SASL: set security.protocol to PLAINTEXT or SSL"
        else:
            reason = f"{where} refused the login by {self._mechanism}: {reply.error_code.name}"
        raise AuthenticationFailed(reason, reply.error_code)

    async def send(self, data: bytes) -> bytes:
        """Sends a message of the mechanism and returns the broker's. Raises AuthenticationFailed."""
        reply = await self._ask(SASL_AUTHENTICATE, {"auth_bytes": data})
        if reply.error_code is not ErrorCode.none:
            text = f": {reply.error_message}" if reply.error_message else f": {reply.error_code.name}"
            refused = f"{self._connection.address} refused the login by {self._mechanism}{text.rstrip('.')}"
            raise AuthenticationFailed(f"{refused}: check {_secret_of(self._mechanism)}", reply.error_code)
        lifetime_ms = schemas.milliseconds(getattr(reply, "session_lifetime", 0))
        self.lifetime_s = lifetime_ms / 1000 if lifetime_ms > 0 else None
        return bytes(reply.auth_bytes)

    def failed(self, reason: object) -> AuthenticationFailed:
        return AuthenticationFailed(f"{self._connection.address}: login by {self._mechanism}: {reason}")

    async def _ask(self, api_key: ApiKey[T], message: dict[str, object]) -> T:
        connection = self._connection
        if not connection.supports(api_key):
            raise self.failed("the broker does not support SASL")
        version = connection.version(api_key)
        data = await connection.exchange(api_key, version, message, is_login=True)
        try:
            reply: T = frames.decode_reply(api_key, version, data)[1]
            return reply
        except ValueError as error:
            raise ConnectionLost(
                f"{connection.address} sent a reply to a login that cannot be read: {error}"
            ) from error


async def _log_in_with_password(exchange: _Exchange, messages: LoginMessages) -> None:
    try:
        message = next(messages)
        while True:
            data = message if isinstance(message, bytes) else await asyncio.to_thread(message)
            message = messages.send(await exchange.send(data))
    except StopIteration:
        return
    except ScramError as error:
        raise exchange.failed(error) from error


async def _log_in_with_token(exchange: _Exchange, source: TokenSource) -> None:
    from odradek.security.oauth import TokenError, token_message, tokens

    try:
        token = await asyncio.to_thread(tokens.token, source)
    except TokenError as error:
        raise exchange.failed(error) from error
    challenge = await exchange.send(token_message(token, source.extensions))
    if challenge:  # the broker says why it refuses the token, and wants one more message before it ends the login
        try:
            await exchange.send(b"\x01")
        except AuthenticationFailed as error:
            tokens.forget(source)
            raise exchange.failed(
                f"the broker refused the token: {challenge.decode(errors='replace')[:500]}"
            ) from error
