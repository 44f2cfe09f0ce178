"""A client's session at a listener with SASL: the login, further logins (KIP-368), the end of the session.

``LoginSession`` stands between a connection and the broker: before the login it takes all requests, afterwards it
passes them on. Connections of other listeners have no session.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from odradek.broker.limits.admissions import HANDSHAKE_S
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.logins.states import SaslStates
from odradek.core.deferred import Deferred
from odradek.security.principal import USER, Principal, TokenPrincipal
from odradek.wire.api_keys import SASL_HANDSHAKE

if TYPE_CHECKING:
    from odradek.broker.front_end.connection import Connection, ConnectionOwner, FastPath
    from odradek.broker.handlers.api import Client
    from odradek.broker.logins.mechanisms import ListenerMechanisms
    from odradek.security.sasl_server import LoggedIn
    from odradek.wire.chunks import Chunk

log = logging.getLogger("odradek.broker.logins")

LEAST_BETWEEN_S = 1.0
"""A client may log in again on a connection at most once in this time, as in Kafka."""
_SHOWN = 200
_HANDSHAKE = SASL_HANDSHAKE.to_bytes(2, "big")


class LoginSession:
    """The owner (``front_end/connection``) of one connection at a listener with SASL.

    ``listener``: its name, for the log. ``accepted_s``: when the connection was accepted, by the loop's clock.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        listener: str,
        mechanisms: ListenerMechanisms,
        *,
        accepted_s: float | None = None,
    ) -> None:
        self._owner = owner
        self.config = owner.config
        self.scheduler = owner.scheduler
        self.quotas = owner.quotas
        self.request_memory = owner.request_memory
        self.reply_memory = owner.reply_memory
        self.request_times = owner.request_times
        self._listener = listener
        self._mechanisms = mechanisms
        self._loop = asyncio.get_running_loop()
        self._accepted_s = self._loop.time() if accepted_s is None else accepted_s
        self._states: SaslStates | None = self._new_login(None)
        self._logged_in: tuple[str, str] | None = None  # mechanism and user
        self._ends_s = 0.0  # when the session ends; 0: it does not end
        self._begun_s = 0.0  # when the last further login began
        self._timer: asyncio.TimerHandle | None = None

    def _new_login(self, before: tuple[str, str] | None) -> SaslStates:
        offered = self._mechanisms
        return SaslStates(offered.names, offered.server, offered.lifetime_ms, before)

    @property
    def most_request_bytes(self) -> int:
        """The longest request: shorter before the login."""
        if self._logged_in is None:
            return self.config.sasl_server_max_receive_size
        return self._owner.most_request_bytes

    # --- the owner of a connection ----

    def admit(self, connection: Connection, host: str, *, is_counted: bool = False) -> bool:
        if not self._owner.admit(connection, host, is_counted=is_counted):
            return False
        left_s = self._accepted_s + HANDSHAKE_S - self._loop.time()
        self._timer = self._loop.call_later(max(left_s, 0.0), self._expire, connection)
        return True

    def remove(self, connection: Connection) -> None:
        self._cancel_timer()
        states = self._states
        if states is not None and states.refusal:  # the client has left without the last message of the login
            who = self._who((states.mechanism, states.user))
            log.info("the login of %s from %s failed: %s", who, connection.client_host, states.refusal[: 2 * _SHOWN])
        self._owner.remove(connection)

    def fast_path(self, frame: bytes) -> FastPath | None:
        return None if self._states is not None or self._is_over() else self._owner.fast_path(frame)

    def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
        states = self._states
        if states is None and frame[:2] == _HANDSHAKE:
            states = self._states = self._further_login()
        if states is None:
            if self._is_over():
                raise Hangup(f"{self._who(self._logged_in)} has not logged in again before the end of the session")
            return self._owner.dispatch(frame, connection)
        answer = states.receive(frame)
        if answer.failure:
            return self._refuse(states, answer.failure, answer.reply, connection)
        if answer.passes:
            return self._owner.dispatch(frame, connection)
        if states.login is not None:
            self._complete(states, states.login, connection)
        return [answer.reply]

    # --- logins -------------------------------------------------------------------------------------------------

    def _further_login(self) -> SaslStates | None:
        """Begins another login on the connection. Returns None where Kafka allows none: then a handler refuses it."""
        now_s = self._loop.time()
        if not self._ends_s or (self._begun_s and now_s - self._begun_s < LEAST_BETWEEN_S):
            return None
        self._begun_s = now_s
        return self._new_login(self._logged_in)

    def _complete(self, states: SaslStates, login: LoggedIn, connection: Client) -> None:
        self._states = None
        self._ends_s = self._loop.time() + states.session_ms / 1000 if states.session_ms else 0.0
        self._cancel_timer()
        connection.principal = (TokenPrincipal if login.by_token else Principal)(USER, login.user)
        if self._logged_in is None:
            self._logged_in = states.mechanism, login.user
            connection.allow_requests(self.most_request_bytes)

    def _refuse(
        self, states: SaslStates, reason: str, reply: bytes, connection: Client
    ) -> Deferred[list[Chunk] | None]:
        """Ends a connection after a refused login. The reply and the end come after a delay, as in Kafka."""
        if states.mechanism or states.user or self._logged_in is not None:
            what = f"the login of {self._who((states.mechanism, states.user))} failed"
        else:
            what = f"no login at the listener {self._listener}"
        connection.hang_up(f"{what}: {reason[: 2 * _SHOWN]}", log)
        promise: Deferred[list[Chunk] | None] = Deferred()
        delay_s = self.config.connection_failed_authentication_delay_ms / 1000
        chunks: list[Chunk] = [reply] if reply else []
        self._loop.call_later(delay_s, promise.resolve, chunks)
        return promise

    def _is_over(self) -> bool:
        return 0.0 < self._ends_s < self._loop.time()

    def _expire(self, connection: Connection) -> None:
        log.info(
            "closing the connection from %s: it has not logged in at the listener %s within %.0f s",
            connection.client_host, self._listener, HANDSHAKE_S,
        )  # fmt: skip
        connection.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _who(self, login: tuple[str, str] | None) -> str:
        """Returns the user and the mechanism for the log, with control characters escaped."""
        mechanism, user = login or ("", "")
        if not user and self._logged_in is not None:  # another login on the connection, which has not given a name
            user = self._logged_in[1]
        by = f" by {mechanism}" if mechanism else ""
        return f"{user[:_SHOWN]!r}{by} at the listener {self._listener}"
