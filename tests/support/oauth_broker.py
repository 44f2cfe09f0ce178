"""A broker at which clients log in by OAUTHBEARER, with an identity provider that gives them tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread
from support.issuer import AUDIENCE, ISSUER, Issuer, TokenEndpoint, token_endpoint

CLIENT, SECRET = "lake", "canary-9d41"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class OauthWorld(NamedTuple):
    """``settings`` are those of a client, by Java's names. ``endpoint`` has the tokens that clients got."""

    endpoint: TokenEndpoint
    settings: dict[str, str]

    @property
    def secrets(self) -> list[str]:
        """What must be in no file and no output: the client's secret, its encoded form, and the tokens."""
        return [SECRET, self.endpoint.login.split()[1], *self.endpoint.tokens]


@contextmanager
def oauth_broker(folder: Path) -> Iterator[OauthWorld]:
    """The broker runs in a thread. Its files are in ``folder``."""
    folder.mkdir(exist_ok=True)
    issuer = Issuer(folder)
    (port,) = reserve_ports(1)
    bootstrap = f"127.0.0.1:{port.port}"
    config = {
        "listeners": f"OUTSIDE://{bootstrap}",
        "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.jwks.endpoint.url": issuer.key_set.as_uri(),
    }
    broker = BrokerThread(folder / "data", config=config).start()
    try:
        with token_endpoint(issuer, CLIENT, SECRET) as endpoint:
            yield OauthWorld(endpoint, {
                "bootstrap.servers": bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": endpoint.url,
                "sasl.jaas.config": f'{MODULE} required clientId="{CLIENT}" clientSecret="{SECRET}";',
            })  # fmt: skip
    finally:
        broker.stop()
