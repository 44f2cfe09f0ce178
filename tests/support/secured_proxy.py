"""A listener with TLS and SASL in front of a plain broker: it ends TLS, answers logins itself and passes the rest on.

The broker advertises the proxy's address, so that clients never meet its plain listener. Rules are Kafka's: before the
login only ApiVersions, SaslHandshake and SaslAuthenticate; after a session's end only a new login.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

from odradek.core.access.credential import Credential
from odradek.core.errors import ErrorCode
from odradek.security.scram import HASHES, ScramError, ScramServer, keys_of, read_client_first, salted_password
from odradek.security.secret import Secret
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from odradek.wire.schemas import Kind

SALT = b"salt of the tests"


class Users:
    """The user and the password that the proxy accepts. ``iterations``: what it asks of SCRAM clients."""

    def __init__(self, user: str, password: str, *, iterations: int = 4096, knows_password: bool = True) -> None:
        self.user = user
        self.password = password
        self.iterations = iterations
        self._stored = password if knows_password else password + "?"

    def keys(self, mechanism: str) -> Credential:
        usable = min(self.iterations, 1_000_000)
        salted = salted_password(mechanism, Secret(self._stored), SALT, usable)
        return keys_of(mechanism, salted, SALT, self.iterations)


class SecuredProxy:
    """``port`` is open between ``start`` and ``stop``. ``logins`` are the names that logged in, in order.

    ``context``: TLS of the server. ``users``: None for a listener without SASL. ``session_s``: the life of a login.
    ``tokens``: the OAUTHBEARER tokens that are accepted.
    """

    def __init__(
        self,
        upstream: str,
        port: int,
        *,
        context: ssl.SSLContext | None = None,
        users: Users | None = None,
        session_s: float = 0,
        tokens: tuple[str, ...] = (),
    ) -> None:
        self._upstream = upstream.rpartition(":")[::2]
        self.port = port
        self.context = context
        self.users = users
        self.session_s = session_s
        self.tokens = tokens
        self.logins: list[str] = []
        self.refused: list[str] = []
        self.extensions: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        # The context may be replaced while the proxy runs, as a broker reloads its key store.
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _close(self) -> None:
        self._server.close()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.context is not None:
                await writer.start_tls(self.context, ssl_handshake_timeout=10)
            await _Session(self, reader, writer).run()
        except (OSError, EOFError, ssl.SSLError, ConnectionError):
            pass
        finally:
            writer.close()

    async def upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._upstream[0], int(self._upstream[1]))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


class _Session:
    """One connection."""

    def __init__(self, proxy: SecuredProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._user = ""
        self._ends_s = 0.0
        self._is_in = proxy.users is None
        self._logging_in = False

    async def run(self) -> None:
        replies, requests = await self._proxy.upstream()
        copy = asyncio.ensure_future(self._copy(replies))
        try:
            while True:
                frame = await _frame(self._reader)
                head = frames.read_request_head(frame)
                if head.api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE) and self._proxy.users is not None:
                    if not await self._log_in(head, frame):
                        return
                elif head.api_key == API_VERSIONS or (self._is_in and not self._logging_in and not self._has_ended()):
                    requests.write(frames.frame(frame))
                    await requests.drain()
                else:
                    self._proxy.refused.append(schemas.api_name(head.api_key))
                    return
        finally:
            copy.cancel()
            requests.close()
            with contextlib.suppress(asyncio.CancelledError, OSError, EOFError):
                await copy

    def _has_ended(self) -> bool:
        return bool(self._ends_s) and time.monotonic() > self._ends_s

    async def _copy(self, replies: asyncio.StreamReader) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._writer.write(frames.frame(await _frame(replies)))
                await self._writer.drain()
        self._writer.close()

    async def _log_in(self, head: frames.RequestHead, frame: bytes) -> bool:
        """Answers a request of a login. Returns False to end the connection."""
        message = schemas.decode(head.api_key, head.version, Kind.REQUEST, frame, head.body)[0]
        if head.api_key == SASL_HANDSHAKE:
            self._logging_in, self._mechanism, self._scram = True, message.mechanism, None
            mechanisms = ["PLAIN", *HASHES, "OAUTHBEARER"]
            known = message.mechanism in mechanisms
            code = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
            await self._reply(head, {"error_code": code, "mechanisms": mechanisms})
            return known
        try:
            answer, is_done = self._step(bytes(message.auth_bytes))
        except (ScramError, ValueError) as error:
            refusal = f"Authentication failed: {error}"
            code = ErrorCode.sasl_authentication_failed
            await self._reply(head, {"error_code": code, "error_message": refusal, "auth_bytes": b""})
            return False
        session_s = self._proxy.session_s if is_done else 0
        if is_done:
            self._is_in, self._logging_in = True, False
            self._ends_s = time.monotonic() + session_s if session_s else 0
            self._proxy.logins.append(self._user)
        row = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer}
        await self._reply(head, row | {"session_lifetime": int(1000 * session_s)})
        return True

    def _step(self, data: bytes) -> tuple[bytes, bool]:
        users = self._proxy.users
        assert users is not None
        if self._mechanism == "PLAIN":
            _, self._user, password = data.decode().split("\0")
            if (self._user, password) != (users.user, users.password):
                raise ValueError("Invalid username or password")
            return b"", True
        if self._mechanism == "OAUTHBEARER":
            return self._bearer(data)
        if self._scram is None:
            first = read_client_first(data)
            self._user = first.user
            if first.is_token:
                self._proxy.extensions.append("tokenauth")
            if first.user != users.user:
                raise ValueError("invalid credentials")
            self._scram = ScramServer(self._mechanism, first, users.keys(self._mechanism), "server-nonce")
            return self._scram.first(), False
        return self._scram.final(data), True

    def _bearer(self, data: bytes) -> tuple[bytes, bool]:
        if data == b"\x01":
            raise ValueError('{"status":"invalid_token"}')
        fields = dict(part.split("=", 1) for part in data.decode().split("\x01")[1:] if part)
        token = fields.pop("auth").removeprefix("Bearer ")
        self._proxy.extensions += [f"{name}={value}" for name, value in fields.items()]
        self._user = "bearer"
        if token not in self._proxy.tokens:
            return b'{"status":"invalid_token"}', False
        return b"", True

    async def _reply(self, head: frames.RequestHead, message: dict[str, Any]) -> None:
        body = schemas.encode(head.api_key, head.version, Kind.RESPONSE, message)
        self._writer.write(frames.frame(frames.reply_head(head.api_key, head.version, head.correlation_id), body))
        await self._writer.drain()


@contextlib.contextmanager
def running(proxy: SecuredProxy) -> Iterator[SecuredProxy]:
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
