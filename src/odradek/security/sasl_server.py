"""The server's side of SASL's mechanisms: state machines without a clock, a socket or randomness.

A mechanism gets the client's messages by ``step``. When ``login`` is set, the client has logged in. ``LoginRefused``
has a text for the client, as in Kafka; the text of ``LoginFailed`` is for the log alone, because it may show whether a
user exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from odradek.core.access.credential import Credential
from odradek.core.access.salts import SaltForm
from odradek.security.scram import ClientFirst, ScramError, ScramServer, read_client_first


class LoginRefused(Exception):
    """The login is refused. The text goes to the client; ``reason`` is for the log, if it says more."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


class LoginFailed(Exception):
    """The login is refused. The text is for the log alone."""


class LoggedIn(NamedTuple):
    """The user of a login, and the time in ms since 1970 at which the user's token ends (None: it has no end)."""

    user: str
    end_ms: int | None = None
    by_token: bool = False


class Mechanism(Protocol):
    """The server's side of one login."""

    user: str
    """The name that the client has given, for the log; "" before that."""
    login: LoggedIn | None

    @property
    def refusal(self) -> str:
        """Why the login fails, if the client has a refusal already and the exchange goes on; else ""."""

    def step(self, message: bytes) -> bytes:
        """Takes a message of the client and returns the server's. Raises LoginRefused, LoginFailed."""


class PlainServer:
    """PLAIN (RFC 4616). ``accepts(user, password)`` compares the password in constant time, also of unknown users."""

    refusal = ""

    def __init__(self, accepts: Callable[[str, str], bool]) -> None:
        self._accepts = accepts
        self.user = ""
        self.login: LoggedIn | None = None

    def step(self, message: bytes) -> bytes:
        if self.login is not None:
            raise LoginFailed("a message after the login")
        parts = message.decode(errors="replace").split("\0", 4)
        if len(parts) != 3:
            raise LoginRefused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}")
        other, self.user, password = parts
        if not self.user:
            raise LoginRefused("Authentication failed: username not specified")
        if not password:
            raise LoginRefused("Authentication failed: password not specified")
        if not self._accepts(self.user, password):
            raise LoginRefused("Authentication failed: Invalid username or password")
        if other not in ("", self.user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.login = LoggedIn(self.user)
        return b""


class PlainUsers:
    """The users of PLAIN with their passwords. ``key``: a secret of this process."""

    def __init__(self, passwords: Mapping[str, str], key: bytes) -> None:
        self._key = key
        self._digests = {user: self._digest(password) for user, password in passwords.items()}
        self._nothing = self._digest("")  # no password is empty

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(errors="replace"), "sha256")

    def accepts(self, user: str, password: str) -> bool:
        """Returns whether the password is the user's. An unknown user takes as long as a wrong password."""
        return hmac.compare_digest(self._digest(password), self._digests.get(user, self._nothing)) and bool(password)

    def __repr__(self) -> str:
        return f"PlainUsers({sorted(self._digests)})"


class ScramKeys(NamedTuple):
    """What a login by SCRAM needs of a user. ``owner``: the user whose token the client has, else the user itself."""

    keys: Credential
    owner: str
    end_ms: int | None = None


class ScramLogin:
    """SCRAM. ``look_up(client)`` returns the keys of the user; for an unknown user, made-up keys (``made_up_keys``),
    so that the exchange goes on and fails like that of a wrong password. ``nonce``: random text."""

    refusal = ""

    def __init__(self, mechanism: str, look_up: Callable[[ClientFirst], ScramKeys], nonce: str) -> None:
        self._mechanism = mechanism
        self._look_up = look_up
        self._nonce = nonce
        self._server: ScramServer | None = None
        self._found: ScramKeys | None = None
        self._by_token = False
        self.user = ""
        self.login: LoggedIn | None = None

    def step(self, message: bytes) -> bytes:
        if self.login is not None:
            raise LoginFailed("a message after the login")
        try:
            if self._server is None or self._found is None:
                client = read_client_first(message)
                self.user, self._by_token = client.user, client.is_token
                if client.authorization not in ("", client.user):
                    raise LoginRefused(
                        "Authentication failed: Client requested an authorization id that is different from username"
                    )
                self._found = self._look_up(client)
                self._server = ScramServer(self._mechanism, client, self._found.keys, self._nonce)
                return self._server.first()
            final = self._server.final(message)
        except ScramError as error:
            raise LoginFailed(str(error)) from None
        self.login = LoggedIn(self._found.owner, self._found.end_ms, self._by_token)
        return final


def made_up_keys(mechanism_hash: str, user: str, key: bytes, form: SaltForm, iterations: int) -> Credential:
    """Returns keys of a user that does not exist: always the same ones for a name and a form (of the salt, and
    iterations), and no password has them. For another form the salt is another one, as after a change of a password.

    ``key``: a secret of the broker, which stays the same when it starts again. Without it a salt does not show whether
    it is made up."""
    begin = f"{mechanism_hash} {form.size}{form.alphabet} {iterations} {user}".encode(errors="replace")
    salt = form.salt(hmac.digest(key, begin, "sha256"))
    stored = hmac.digest(key, b"stored" + salt, mechanism_hash)
    return Credential(salt, stored, hmac.digest(key, b"server" + salt, mechanism_hash), iterations)
