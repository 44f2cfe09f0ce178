"""The mechanisms of one listener: its users of PLAIN, the users of SCRAM in the catalogue, the times of sessions."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from odradek.broker.settings.listener_settings import ListenerSettings, plain_users
from odradek.catalog.credentials import MECHANISMS as NUMBERS
from odradek.catalog.credentials import CredentialForm, FormCounts
from odradek.core.access.credential import Credential
from odradek.core.access.salts import SaltForm
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
from odradek.security.scram import (
    LEAST_ITERATIONS,
    NONCE_BYTES,
    SALT_BYTES,
    ClientFirst,
    keys_of,
    salted_password,
)

if TYPE_CHECKING:
    from odradek.broker.logins.provider_keys import ProviderKeys
    from odradek.broker.metadata.delegation_tokens import DelegationTokens
    from odradek.security.key_fetch import FetchTimes, KeySetSource
    from odradek.security.web_tokens import TokenRules, WebToken

    KeysOf = Callable[[KeySetSource, FetchTimes], ProviderKeys]
    """Returns the keys of a provider. Listeners with the same source share them."""

log = logging.getLogger("odradek.broker")

_NUMBER_OF = {name: number for number, name in NUMBERS.items()}
_FIRST_FORM = CredentialForm(SaltForm(SALT_BYTES), LEAST_ITERATIONS)
"""The form of made-up keys while no user has any."""
_KNOWN_TOKENS = 1000
"""The tokens whose keys are kept: each derivation takes about 2 ms."""

Users = Mapping[str, Mapping[int, Credential]]


class TokenUsers:
    """Keys for logins by delegation tokens, whose passwords are the secrets of the tokens.

    For an unknown id, or that of a token that has ended, there are made-up keys with the same salt. Ids are random, so
    the time of an answer tells no one which of them exist."""

    def __init__(self, tokens: DelegationTokens, key: bytes, now_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._key = key
        self._now_ms = now_ms
        self._known: dict[tuple[str, str], Credential] = {}

    def keys(self, mechanism: str, token_id: str) -> ScramKeys:
        """Returns the keys of a token, its owner and its end."""
        hash_name = HASHES[mechanism]
        made_up = made_up_keys(hash_name, f"token {token_id}", self._key, SaltForm(SALT_BYTES), LEAST_ITERATIONS)
        token = self._tokens.get(token_id)
        if token is None or token.is_expired(self._now_ms()):
            return ScramKeys(made_up, token_id)
        keys = self._known.get((mechanism, token_id))
        if keys is None:
            if len(self._known) >= _KNOWN_TOKENS:
                self._known.clear()
            salt, iterations = made_up.salt, made_up.iterations
            salted = salted_password(mechanism, self._tokens.password(token_id), salt, iterations)
            keys = self._known[mechanism, token_id] = keys_of(mechanism, salted, salt, iterations)
        return ScramKeys(keys, token.owner.partition(":")[2], token.expiry_ms)

    def __repr__(self) -> str:
        return "TokenUsers()"


class ScramUsers:
    """Keys for logins by SCRAM. ``users()``: the users of the catalogue; ``forms()``: the counts of the forms of their
    keys, by mechanism; ``key``: a secret of the broker.

    For an unknown user there are made-up keys. Among unknown names each form is as frequent as among the users, so no
    form tells whether a user exists. They are made for known users, too, so that both take the same time."""

    def __init__(
        self,
        users: Callable[[], Users],
        forms: Callable[[], Mapping[int, FormCounts]],
        key: bytes,
        by_token: TokenUsers | None = None,
    ) -> None:
        self._users = users
        self._forms = forms
        self._key = key
        self._by_token = by_token

    def keys(self, mechanism: str, client: ClientFirst) -> ScramKeys:
        """Raises LoginFailed for a login by a delegation token, if the broker has none."""
        if client.is_token:
            if self._by_token is None:
                raise LoginFailed("the broker has no delegation tokens")
            return self._by_token.keys(mechanism, client.user)
        form = self._form_of(mechanism, client.user)
        made_up = made_up_keys(HASHES[mechanism], client.user, self._key, *form)
        credential = self._users().get(client.user, {}).get(_NUMBER_OF[mechanism], made_up)
        return ScramKeys(credential, client.user)

    def _form_of(self, mechanism: str, user: str) -> CredentialForm:
        """Returns the form of a name's made-up keys. It stays the same while the users do."""
        counts = self._forms().get(_NUMBER_OF[mechanism])
        digest = hmac.digest(self._key, b"form " + user.encode(errors="replace"), "sha256")
        form = None if counts is None else counts.at(int.from_bytes(digest[:8], "big"))
        return form or _FIRST_FORM

    def __repr__(self) -> str:
        return "ScramUsers()"


class TokenCheck:
    """Checks the tokens of OAUTHBEARER by the newest keys of the identity provider."""

    def __init__(self, keys: ProviderKeys, rules: TokenRules, now_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._rules = rules
        self._now_ms = now_ms

    def check(self, token: str) -> WebToken:
        """Returns the claims of a valid token. Raises TokenRefused."""
        from odradek.security.web_tokens import UnknownKey, check

        try:
            return check(token, self._keys.keys, self._rules, self._now_ms())
        except UnknownKey:
            self._keys.miss()
            raise


def _warn_of_plain_http(setting: str, url: str) -> None:
    """Warns of keys that come from another host without TLS."""
    from odradek.security.stores import unprotected_host  # few brokers have this mechanism

    if host := unprotected_host(url):
        log.warning(
            "%s: the keys of the identity provider come from %s without TLS, so others on the network can replace them "
            "and log in as any user; use https or a file",
            setting, host,
        )  # fmt: skip


class ListenerMechanisms:
    """The mechanisms that a listener offers now. Changed settings hold for the next connection.

    Those of OAUTHBEARER do not change while the broker runs: they say whom the broker trusts."""

    def __init__(
        self, settings: ListenerSettings, scram: ScramUsers, now_ms: Callable[[], int], keys_of: KeysOf
    ) -> None:
        self._settings = settings
        self._scram = scram
        self._now_ms = now_ms
        self._plain: tuple[str | None, PlainUsers] | None = None
        self._key = secrets.token_bytes(32)
        self._keys_of = keys_of
        self._tokens: TokenCheck | None = None
        if "OAUTHBEARER" in self.names:
            self._token_check()  # the first keys are there before the first login

    def _token_check(self) -> TokenCheck:
        if self._tokens is None:
            from odradek.broker.settings import oauth

            tokens = oauth.read(self._settings)
            _warn_of_plain_http(self._settings.full_name(oauth.KEY_SET, "OAUTHBEARER"), tokens.source.url)
            self._tokens = TokenCheck(self._keys_of(tokens.source, tokens.times), tokens.rules, self._now_ms)
        return self._tokens

    @property
    def names(self) -> tuple[str, ...]:
        return self._settings.mechanisms

    def server(self, mechanism: str) -> Mechanism:
        """Returns the server's side of a new login."""
        if mechanism == "PLAIN":
            return PlainServer(self._plain_users().accepts)
        if mechanism == "OAUTHBEARER":
            from odradek.security.oauth_server import OauthServer

            return OauthServer(self._token_check().check)
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
