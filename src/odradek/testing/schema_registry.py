"""``odradek.SchemaRegistry``: a schema registry for a ``with`` block, beside a broker of the test."""

from __future__ import annotations

import shutil
import ssl
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from odradek.client.config import as_config
from odradek.client.context_managers import Startable
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.core.errors import ConfigError, OdradekError
from odradek.registry.faults import RegistryFaults
from odradek.registry.server import TOPIC, RegistryAccess, RegistryServer
from odradek.testing.ports import PortOwner

if TYPE_CHECKING:
    from odradek.testing.broker import Broker
    from odradek.testing.cluster import Cluster


class RegistryFailed(OdradekError):
    """The registry cannot be started, or is not started. The message says why."""


class SchemaRegistry(PortOwner, OtherNames, Startable):
    """A schema registry with Confluent's API, for any of its clients::

        with odradek.Broker() as broker, odradek.SchemaRegistry(broker) as registry:
            SchemaRegistryClient({"url": registry.url})

    ``broker``: an ``odradek.Broker``, an ``odradek.Cluster``, the settings of a client, or addresses. The registry
    keeps its schemas in ``topic``; a later registry with the same topic has the same schemas. Several may run at once.

    ``user``: a text ``NAME:PASSWORD`` that requests need (basic authentication). ``token``: a bearer token that they
    need; with both, either. ``tls``: serves HTTPS with a throw-away certificate. ``client_settings`` has what
    Confluent's clients need. ``port`` 0 selects a free port, which stays the same over ``stop`` and ``start``.

    The registry runs in a thread of this process. Raises ConfigError for wrong arguments.
    """

    def __init__(
        self,
        broker: Broker | Cluster | Mapping[str, object] | str,
        *,
        topic: str = TOPIC,
        host: str = "127.0.0.1",
        port: int = 0,
        user: str | None = None,
        token: str | None = None,
        tls: bool = False,
        **others: Unpack[NoOthers],
    ) -> None:
        if len(others) > 0:
            refuse("SchemaRegistry", others)
        if user is not None and ":" not in user:
            raise ConfigError(f"user={user!r}: expected NAME:PASSWORD")
        self._broker = broker
        self._topic = topic
        self.host = host
        self._access = RegistryAccess(user, token)
        self._directory: Path | None = None
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._directory = Path(tempfile.mkdtemp(prefix="odradek-registry-"))
            self._tls = _certified(self._directory, host)
        self.port = port
        self._server: RegistryServer | None = None
        self.faults = RegistryFaults()
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _remove, self._directory)

    @property
    def url(self) -> str:
        """The address for clients, as ``http://127.0.0.1:PORT``. Raises RegistryFailed before the first ``start``."""
        if not self.port:
            raise RegistryFailed("the registry has not been started: call start(), or use it in a with block")
        shown = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"{'http' if self._tls is None else 'https'}://{shown}:{self.port}"

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings for the class ``SchemaRegistryClient`` of confluent-kafka."""
        settings = {"url": self.url}
        if self._directory is not None:
            settings["ssl.ca.location"] = str(self._directory / "ca.pem")
        if self._access.user is not None:
            settings["basic.auth.user.info"] = self._access.user
        elif self._access.token is not None:
            settings |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": self._access.token,
                "bearer.auth.logical.cluster": "lsrc-odradek", "bearer.auth.identity.pool.id": "pool-odradek",
            }  # fmt: skip
        return settings

    @property
    def running(self) -> bool:
        """Whether the registry accepts requests."""
        return self._server is not None

    def start(self) -> Self:
        """Starts the registry. Raises RegistryFailed if its port is in use."""
        with self._lock:
            if self._server is not None:
                return self
            try:
                with self.choosing_port():
                    self._server = self._made()
                    self.port = self._server.port
            except OSError as error:
                raise RegistryFailed(f"port {self.port} of {self.host} cannot be used: {error}") from error
            self._server.start(as_config(_settings(self._broker)))
            return self

    def _made(self) -> RegistryServer:
        return RegistryServer(
            self.host, self.port, topic=self._topic, access=self._access,
            tls=self._tls, first=self.faults.answer,
        )  # fmt: skip

    def stop(self) -> None:
        """Ends the registry: clients get no connection until ``start``. Faults stay."""
        with self._lock:
            server, self._server = self._server, None
            self.faults.end()
            if server is not None:
                server.close()

    def close(self) -> None:
        """Ends the registry for good."""
        self.stop()
        self.release_port()
        self._end()

    def __repr__(self) -> str:
        return f"<SchemaRegistry at {self.url if self.port else 'no port yet'}>"


def _settings(broker: Broker | Cluster | Mapping[str, object] | str) -> Mapping[str, object]:
    if isinstance(broker, str):
        return {"bootstrap.servers": broker}
    if isinstance(broker, Mapping):
        return broker
    return dict(broker.client_settings)


def _certified(directory: Path, host: str) -> ssl.SSLContext:
    """Makes the certificates of an authority and of the registry. Raises ConfigError without cryptography."""
    from odradek.testing.security import make_security

    try:
        made = make_security("SSL", directory, host)
    except ConfigError:
        _remove(directory)
        raise
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.broker["ssl.keystore.location"])
    return context


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
