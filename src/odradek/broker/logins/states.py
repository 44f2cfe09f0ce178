"""The states of a SASL login, as in Kafka's SaslServerAuthenticator. No socket, clock or randomness.

Before a login, a client sends ApiVersions at most once, then SaslHandshake, then the messages of the mechanism: in
SaslAuthenticate requests after SaslHandshake 1, as bare frames after SaslHandshake 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from odradek.broker.front_end.router import refusal_reply
from odradek.broker.handlers import served_versions
from odradek.broker.handlers.k18_api_versions import has_valid_names
from odradek.core.errors import ErrorCode
from odradek.core.state_machines.tables import checked
from odradek.security.sasl_server import LoggedIn, LoginFailed, LoginRefused, Mechanism
from odradek.wire import schemas
from odradek.wire.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from odradek.wire.frames import RequestHead, read_api, read_request_head, reply_head
from odradek.wire.schemas import Kind

_HANDSHAKE_VERSIONS = range(2)
_AUTHENTICATE_VERSIONS = range(3)
_NEWEST_API_VERSIONS = 4


class LoginState(Enum):
    """Kafka's names without INITIAL_REQUEST (GSSAPI without a handshake), which no supported mechanism has."""

    HANDSHAKE_OR_VERSIONS_REQUEST = auto()
    HANDSHAKE_REQUEST = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


_STATE = LoginState
NEXT: dict[LoginState, frozenset[LoginState]] = {
    _STATE.HANDSHAKE_OR_VERSIONS_REQUEST: frozenset({_STATE.HANDSHAKE_REQUEST, _STATE.AUTHENTICATE, _STATE.FAILED}),
    _STATE.HANDSHAKE_REQUEST: frozenset({_STATE.AUTHENTICATE, _STATE.FAILED}),
    _STATE.AUTHENTICATE: frozenset({_STATE.COMPLETE, _STATE.FAILED}),
    _STATE.COMPLETE: frozenset({_STATE.FAILED}),
    _STATE.FAILED: frozenset({_STATE.FAILED}),
}
"""The valid next states of each state. Every frame after the end of a login is refused."""
EXPECTED: dict[LoginState, frozenset[int]] = {
    _STATE.HANDSHAKE_OR_VERSIONS_REQUEST: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    _STATE.HANDSHAKE_REQUEST: frozenset({SASL_HANDSHAKE}),
    _STATE.AUTHENTICATE: frozenset({SASL_AUTHENTICATE}),
    _STATE.COMPLETE: frozenset(),
    _STATE.FAILED: frozenset(),
}
"""The APIs whose requests each state takes. After SaslHandshake 0, AUTHENTICATE takes bare messages instead."""


class LoginAnswer(NamedTuple):
    """What follows a frame. ``passes``: a handler serves the frame. Otherwise ``reply`` is the whole reply.

    ``failure``: why the login has failed, for the log; the connection closes after the reply."""

    reply: bytes = b""
    passes: bool = False
    failure: str = ""

    def __repr__(self) -> str:
        return f"LoginAnswer({len(self.reply)} bytes, passes={self.passes}, failure={self.failure!r})"


class SaslStates:
    """One login, or one further login on the same connection.

    ``make(mechanism)`` returns the server of an enabled mechanism. ``before``: the mechanism and the user of the first
    login, if this is a further one. ``lifetime_ms(mechanism, login)`` returns the ms until the session ends, 0 for no
    end.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        make: Callable[[str], Mechanism],
        lifetime_ms: Callable[[str, LoggedIn], int],
        before: tuple[str, str] | None = None,
    ) -> None:
        self._mechanisms = tuple(mechanisms)
        self._make = make
        self._lifetime_ms = lifetime_ms
        self._before = before
        self._server: Mechanism | None = None
        self._has_headers = False
        self.state = LoginState.HANDSHAKE_OR_VERSIONS_REQUEST if before is None else LoginState.HANDSHAKE_REQUEST
        self.mechanism = ""
        self.session_ms = 0
        """The ms until the session ends, after the login; 0: it does not end."""

    @property
    def login(self) -> LoggedIn | None:
        """The result of the login; None before its end."""
        return self._server.login if self.state is LoginState.COMPLETE and self._server is not None else None

    @property
    def user(self) -> str:
        """The name that the client has given; "" before that."""
        return self._server.user if self._server is not None else ""

    @property
    def refusal(self) -> str:
        """Why the login fails, if the exchange goes on after a refusal; else ""."""
        server = self._server if self.state is LoginState.AUTHENTICATE else None
        return "" if server is None else server.refusal

    def receive(self, frame: bytes) -> LoginAnswer:
        """Takes a frame without its length."""
        if self.state is LoginState.AUTHENTICATE:
            return self._authenticate(frame) if self._has_headers else self._authenticate_bare(frame)
        try:
            api_key, version = read_api(frame)
            if api_key in EXPECTED[self.state]:  # the head of another request is not read: it would load its schema
                head = read_request_head(frame)
                if api_key == API_VERSIONS:
                    return self._api_versions(head, frame)
                if version in _HANDSHAKE_VERSIONS:
                    return self._handshake(head, frame)
        except ValueError as error:  # FrameError is one
            return self._failed(f"the request before the login cannot be read: {error}")
        return self._failed(f"unexpected request before the login: {schemas.api_name(api_key)} v{version}")

    def _enter(self, state: LoginState) -> None:
        self.state = checked(NEXT, "login", self.state, state)

    def _failed(self, reason: str, reply: bytes = b"") -> LoginAnswer:
        self._enter(LoginState.FAILED)
        return LoginAnswer(reply, failure=reason)

    def _api_versions(self, head: RequestHead, frame: bytes) -> LoginAnswer:
        if head.version in range(_NEWEST_API_VERSIONS + 1):
            message = schemas.decode_short(head.api_key, head.version, frame, head.body)[0]
            if has_valid_names(message, head.version):
                self._enter(LoginState.HANDSHAKE_REQUEST)
        return LoginAnswer(passes=True)

    def _handshake(self, head: RequestHead, frame: bytes) -> LoginAnswer:
        asked = schemas.decode_short(head.api_key, head.version, frame, head.body)[0].mechanism
        code = ErrorCode.none if asked in self._mechanisms else ErrorCode.unsupported_sasl_mechanism
        reply = _reply(head, {"error_code": code, "mechanisms": self._mechanisms})
        if code:
            return self._failed(f"unsupported SASL mechanism {asked!r}", reply)
        self._has_headers = head.version >= 1
        if self._before is not None and self._before[0] != asked:
            self.mechanism = asked  # the next message gets the refusal
        else:
            self.mechanism = asked
            self._server = self._make(asked)
        self._enter(LoginState.AUTHENTICATE)
        return LoginAnswer(reply)

    def _authenticate(self, frame: bytes) -> LoginAnswer:
        try:
            head = read_request_head(frame)
            if head.api_key not in EXPECTED[self.state]:
                return self._unexpected(head)
            if head.version not in _AUTHENTICATE_VERSIONS:
                return self._failed(f"SaslAuthenticate v{head.version} is not supported")
            message = schemas.decode_short(head.api_key, head.version, frame, head.body)[0]
        except ValueError as error:
            return self._failed(f"the request of the login cannot be read: {error}")
        try:
            data = self._step(bytes(message.auth_bytes))
        except LoginRefused as error:
            return self._failed(error.reason, _reply(head, _refusal(str(error))))
        except LoginFailed as error:
            during = "authentication" if self._before is None else "re-authentication"
            text = (
                f"Authentication failed during {during} due to invalid credentials with SASL mechanism {self.mechanism}"
            )
            return self._failed(f"{text}: {error}", _reply(head, _refusal(text)))
        reply: dict[str, object] = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": data}
        if head.version >= 1:
            reply["session_lifetime"] = self.session_ms
        return LoginAnswer(_reply(head, reply))

    def _unexpected(self, head: RequestHead) -> LoginAnswer:
        """Refuses a request of another API, as in Kafka with an error of this API. Its body is not read, so an error
        that would be in rows for the request's topics or groups is not sent."""
        name = schemas.api_name(head.api_key)
        text = f"Unexpected Kafka request of type {name.upper()} during SASL authentication."
        oldest, newest = served_versions().get(head.api_key, (0, -1))
        is_served = oldest <= head.version <= newest
        body = refusal_reply(head, ErrorCode.illegal_sasl_state, text) if is_served else None
        if body is None:
            return self._failed(text)
        start = reply_head(head.api_key, head.version, head.correlation_id)
        return self._failed(text, (len(start) + len(body)).to_bytes(4, "big") + start + body)

    def _authenticate_bare(self, frame: bytes) -> LoginAnswer:
        try:
            data = self._step(frame)
        except LoginRefused as error:
            return self._failed(error.reason)
        except LoginFailed as error:
            return self._failed(str(error))
        return LoginAnswer(len(data).to_bytes(4, "big") + data)

    def _step(self, message: bytes) -> bytes:
        """Passes a message to the mechanism and returns its answer. Raises LoginRefused, LoginFailed."""
        server = self._server
        if server is None:
            old = self._before[0] if self._before is not None else ""
            raise LoginRefused(
                f"SASL mechanism '{self.mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{old}'"
            )
        data = server.step(message)
        login = server.login
        if login is not None:
            if self._before is not None and self._before[1] != login.user:
                raise LoginRefused(
                    f"Cannot change principals during re-authentication from User.{self._before[1]}: User.{login.user}"
                )
            self.session_ms = self._lifetime_ms(self.mechanism, login)
            self._enter(LoginState.COMPLETE)
        return data


def _refusal(text: str) -> dict[str, object]:
    return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": text, "auth_bytes": b""}


def _reply(head: RequestHead, message: dict[str, object]) -> bytes:
    """Returns the whole reply, with its length."""
    start = reply_head(head.api_key, head.version, head.correlation_id)
    body = schemas.encode(head.api_key, head.version, Kind.RESPONSE, message)
    return (len(start) + len(body)).to_bytes(4, "big") + start + body
