"""How a client's connections are protected and who its user is. Hashable and picklable; ``repr`` shows no secret.

Clients have such settings, and so have nodes of a cluster that log in at other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, TypeAlias

from odradek.security.protocols import HASHES, PLAINTEXT
from odradek.security.secret import Secret
from odradek.security.stores import Tls

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)


class Login(NamedTuple):
    """A user's name and password. With ``is_token``, the id and the HMAC of a delegation token (KIP-48)."""

    user: str
    password: Secret
    is_token: bool = False


class TokenSource(NamedTuple):
    """Where OAUTHBEARER gets its tokens: ``url`` is a file (``file:///…``) or the endpoint of an identity provider.

    The endpoint gets the client's id and secret (client credentials grant of OAuth 2). ``extensions`` are sent with the
    token (KIP-342). Times in milliseconds.
    """

    url: str
    client_id: str = ""
    client_secret: Secret = Secret("")
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000
    encodes_header: bool = False
    tls: Tls | None = None

    def __repr__(self) -> str:
        """Without what may be a secret: user and query of the address, and the values of extensions."""
        address = self.url.partition("?")[0]
        scheme, slashes, rest = address.partition("://")
        names = ", ".join(name for name, _ in self.extensions)
        return f"TokenSource({scheme}{slashes}{rest.rpartition('@')[2]}, extensions: {names or 'none'})"


class ClientSecurity(NamedTuple):
    """The protocol of the listener, TLS if it has it, and the login if it asks for one."""

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    mechanism: str = ""
    login: Login | TokenSource | None = None


NO_SECURITY = ClientSecurity()


LoginMessages: TypeAlias = Generator["bytes | Callable[[], bytes]", bytes, None]
"""Yields messages, or functions that make one and may take milliseconds, and gets the other side's answers. It ends
with the login. Raises ScramError."""


def login_messages(mechanism: str, login: Login) -> LoginMessages:
    """Returns the messages of one login, by PLAIN or by a mechanism of SCRAM."""
    if mechanism == PLAIN:
        yield f"\0{login.user}\0{login.password.reveal()}".encode()
        return
    import secrets  # few clients log in

    from odradek.security.scram import NONCE_BYTES, ScramClient

    extensions = {"tokenauth": "true"} if login.is_token else None
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    client = ScramClient(mechanism, login.user, login.password, nonce, extensions=extensions)
    server_first = yield client.first()
    # A broker may ask for a million iterations, which take a quarter of a second.
    client.verify((yield partial(client.final, server_first)))
