"""The mechanisms of one listener: its users of PLAIN, the users of SCRAM in the catalogue, the times of sessions."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from itertools import islice

from odradek.broker.settings.listeners import ListenerSettings, plain_users
from odradek.catalog.credentials import MECHANISMS as NUMBERS
from odradek.core.credential import Credential
from odradek.security.protocols import HASHES
from odradek.security.sasl_server import (
    LoggedIn,
    LoginFailed,
    Mechanism,
    PlainServer,
    PlainUsers,
    ScramKeys,
    ScramLogin,
    made_up_keys,
)
from odradek.security.scram import LEAST_ITERATIONS, NONCE_BYTES, SALT_BYTES, ClientFirst

_NUMBER_OF = {name: number for number, name in NUMBERS.items()}
_SAMPLE = 64

Users = Mapping[str, Mapping[int, Credential]]


class ScramUsers:
    """Keys for logins by SCRAM. ``users()``: the users of the catalogue; ``change()`` a number that every change of
    the catalogue raises; ``key``: a secret of the broker.

    For an unknown user there are made-up keys, of the form that some of the users have. They are made for known users,
    too, so that both take the same time."""

    def __init__(self, users: Callable[[], Users], change: Callable[[], int], key: bytes) -> None:
        self._users = users
        self._change = change
        self._key = key
        self._forms: dict[str, tuple[int, list[tuple[int, int]]]] = {}

    def keys(self, mechanism: str, client: ClientFirst) -> ScramKeys:
        """Raises LoginFailed for a login by a delegation token: the broker has none."""
        if client.is_token:
            raise LoginFailed("the broker has no delegation tokens")
        forms = self._forms_of(mechanism)
        digest = hashlib.sha256(self._key + client.user.encode(errors="replace")).digest()
        salt_bytes, iterations = forms[int.from_bytes(digest[:8], "big") % len(forms)]
        made_up = made_up_keys(HASHES[mechanism], client.user, self._key, salt_bytes, iterations)
        found = self._users().get(client.user, {}).get(_NUMBER_OF[mechanism], made_up)
        return ScramKeys(found, client.user)

    def _forms_of(self, mechanism: str) -> list[tuple[int, int]]:
        """Returns the sizes of salts and the numbers of iterations of some users, each pair once."""
        change = self._change()
        known = self._forms.get(mechanism)
        if known is None or known[0] != change:
            number = _NUMBER_OF[mechanism]
            some = (each[number] for each in islice(self._users().values(), _SAMPLE) if number in each)
            forms = sorted({(len(one.salt), one.iterations) for one in some}) or [(SALT_BYTES, LEAST_ITERATIONS)]
            known = self._forms[mechanism] = change, forms
        return known[1]

    def __repr__(self) -> str:
        return "ScramUsers()"


class ListenerMechanisms:
    """The mechanisms that a listener offers now. Changed settings hold for the next connection."""

    def __init__(self, settings: ListenerSettings, scram: ScramUsers, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._scram = scram
        self._now_ms = now_ms
        self._plain: tuple[str | None, PlainUsers] | None = None
        self._key = secrets.token_bytes(32)

    @property
    def names(self) -> tuple[str, ...]:
        return self._settings.mechanisms

    def server(self, mechanism: str) -> Mechanism:
        """Returns the server's side of a new login."""
        if mechanism == "PLAIN":
            return PlainServer(self._plain_users().accepts)
        return ScramLogin(
            mechanism, lambda client: self._scram.keys(mechanism, client), secrets.token_urlsafe(NONCE_BYTES)
        )

    def _plain_users(self) -> PlainUsers:
        text = self._settings.text("sasl.jaas.config", "PLAIN")
        if self._plain is None or self._plain[0] != text:
            self._plain = text, PlainUsers(plain_users(self._settings), self._key)
        return self._plain[1]

    def lifetime_ms(self, mechanism: str, login: LoggedIn) -> int:
        """Returns the ms until the session of a login ends: by the setting or by the end of its token. 0: no end."""
        most: int = max(0, self._settings.value("connections.max.reauth.ms", mechanism))
        if login.end_ms is None:
            return most
        left = max(1, login.end_ms - self._now_ms())  # 0 would mean that there is no end
        return min(most, left) if most else left
