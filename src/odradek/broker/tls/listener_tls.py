"""The TLS of one listener: its newest context, which follows changed files and settings, and the names of clients."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.broker.settings.listener_settings import ListenerSettings
from odradek.broker.settings.tls_settings import CertificateNames, server_tls
from odradek.broker.tls.transport import Gate, TlsTransport
from odradek.core.errors import ConfigError
from odradek.security.names import MappingRules, subject_name
from odradek.security.principal import USER, Principal
from odradek.security.stores import ServerTls, server_context, state_of_files

if TYPE_CHECKING:
    from odradek.broker.front_end.bound_sockets import AcceptedFactory
    from odradek.core.deferred import Deferred

log = logging.getLogger("odradek.broker")

_State = tuple[ServerTls, tuple[object, ...]]
_Made = tuple[ssl.SSLContext, CertificateNames]


class ListenerTls:
    """``in_thread(job)`` runs a job in a thread; its promise holds the exception or None. Raises ConfigError."""

    def __init__(
        self,
        settings: ListenerSettings,
        listener: str,
        in_thread: Callable[[Callable[[], None]], Deferred[BaseException | None]],
    ) -> None:
        self._settings = settings
        self.listener = listener
        self._in_thread = in_thread
        tls = server_tls(settings)
        self._state: _State = tls, state_of_files(tls.trust, tls.key)
        self._context = server_context(tls)
        self._names = CertificateNames.of(tls)
        self._refused: _State | None = None
        self._is_busy = False
        self._rules = MappingRules(settings.text("ssl.principal.mapping.rules") or "DEFAULT")
        self.handshakes: set[TlsTransport] = set()
        """The connections before the end of their handshake."""

    def context(self) -> ssl.SSLContext:
        """Returns the newest context."""
        return self._context

    def identify(self, certificate: bytes) -> Principal:
        """Returns the principal of a client's certificate. Raises ValueError if no rule makes a name of it."""
        name = subject_name(certificate)
        user = self._rules.user(name)
        if user is None:
            raise ValueError(f"no rule of ssl.principal.mapping.rules matches {name[:200]!r}")
        return Principal(USER, user)

    def protocols(self, gate: Gate, make: AcceptedFactory) -> Callable[[], TlsTransport]:
        """Returns the factory of the protocols of accepted sockets. ``make``: makes what serves a connection."""
        return lambda: TlsTransport(gate, self, make)

    def refresh(self) -> None:
        """Makes a new context in a thread, if a setting or a file has changed. New connections use it."""
        try:
            tls = server_tls(self._settings)
        except ConfigError as error:
            log.error("the listener %s keeps its TLS: %s", self.listener, error)
            return
        state: _State = tls, state_of_files(tls.trust, tls.key)
        if self._is_busy or state in (self._state, self._refused):
            return
        self._is_busy = True
        made: list[_Made] = []
        self._in_thread(lambda: made.append(self._make(tls))).then(lambda error: self._apply(state, made, error))

    def _make(self, tls: ServerTls) -> _Made:
        """Makes a new context. Raises ConfigError, also if the certificate's names may not change."""
        names = CertificateNames.of(tls)
        self._names.check_change(names, self._settings)
        return server_context(tls), names

    def _apply(self, state: _State, made: list[_Made], error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            self._refused = state
            log.error("the listener %s keeps its former certificates, the new ones cannot be used: %s",
                      self.listener, error)  # fmt: skip
            return
        changed = "certificates" if state[0] == self._state[0] else "settings of TLS"
        self._state, self._refused = state, None
        self._context, self._names = made[0]
        self._rules = MappingRules(self._settings.text("ssl.principal.mapping.rules") or "DEFAULT")
        log.info("new connections of the listener %s use its changed %s", self.listener, changed)

    def abort(self) -> None:
        """Ends all handshakes, when the broker stops."""
        for transport in tuple(self.handshakes):
            transport.abort()
