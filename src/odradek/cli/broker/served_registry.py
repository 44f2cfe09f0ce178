"""``odradek serve --schema-registry``: a schema registry in the process of the broker, which is its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.errors import ConfigError

if TYPE_CHECKING:
    from odradek.registry.server import RegistryServer

SCHEMA_REGISTRY = "--schema-registry"


class ServedRegistry:
    """Takes its port at once, and serves from ``start`` on. Raises ConfigError if the port cannot be used."""

    def __init__(self, address: tuple[str, int]) -> None:
        from odradek.registry.server import RegistryServer

        host, port = address
        try:
            self._server: RegistryServer = RegistryServer(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"{SCHEMA_REGISTRY} {host}:{port}: {reason}: choose another address") from error
        shown = f"[{host.strip('[]')}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.port}"

    def start(self, addresses: str) -> None:
        """Begins to serve. ``addresses``: of the broker's listeners; the first one is without TLS and logins."""
        from odradek.client.config import as_config

        self._server.start(as_config(addresses.split(" ", maxsplit=1)[0]))

    def close(self) -> None:
        self._server.close()


def check_listener(listen: tuple[str, int] | None, listeners: str) -> None:
    """Raises ConfigError unless the first listener is without TLS and logins. ``listeners``: the setting."""
    first = listeners.split(",", maxsplit=1)[0].strip()
    if listen is None and not first.upper().startswith("PLAINTEXT://"):
        raise ConfigError(
            f"{SCHEMA_REGISTRY} needs a listener without TLS and logins, and the first one is {first}: put "
            "PLAINTEXT://HOST:PORT first, or start odradek.SchemaRegistry in Python with the settings of a client"
        )
