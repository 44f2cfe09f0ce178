"""A broker in this process with a proxy in front of it that ends TLS and answers logins, and the clients' settings."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import odradek
from odradek.testing.ports import reserve_ports
from support.certificates import Authority
from support.secured_proxy import SecuredProxy, Users, running

USER, SECRET = "alice", "al=ice' s3cret;"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Listeners:
    """The broker advertises the proxy's port. Each test starts a proxy with the listener that it needs."""

    def __init__(self) -> None:
        self._reservation = reserve_ports(1)[0]
        port = self._reservation.port
        config = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}", "num.partitions": 1}
        self.broker = odradek.Broker(config=config, in_thread=True).start()
        self.port = port

    def secured(self, **options: Any) -> AbstractContextManager[SecuredProxy]:
        return running(SecuredProxy(self.broker.bootstrap_servers, self.port, **options))


def server(authority: Authority, name: str = "broker", *, asks: Authority | None = None) -> ssl.SSLContext:
    """The context of a listener. ``asks``: the authority whose certificates clients need."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.directory / f"{name}.pem")
    if asks is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(asks.pem)
    return context


def secure_settings(authority: Authority) -> dict[str, str]:
    """Java's names: TLS, and a login by SCRAM."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM} required username="{USER}" password="{SECRET}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.pem),
    }


class SecuredListener(NamedTuple):
    """A running listener with TLS and SCRAM. ``folder`` has the certificates, ``settings`` are those of a client."""

    proxy: SecuredProxy
    folder: Path
    settings: dict[str, str]


@contextmanager
def secured_listener(
    folder: Path, *topics: str, partitions: int = 1, users: Users | None = None
) -> Iterator[SecuredListener]:
    """A broker with these topics behind such a listener. ``users``: by default the user and the password above."""
    authority = Authority(folder)
    authority.issue("broker")
    listeners = Listeners()
    try:
        for topic in topics:
            listeners.broker.create_topic(topic, partitions)
        with listeners.secured(context=server(authority), users=users or Users(USER, SECRET)) as proxy:
            settings = {"bootstrap.servers": proxy.address, **secure_settings(authority)}
            yield SecuredListener(proxy, folder, settings)
    finally:
        listeners.broker.close()
