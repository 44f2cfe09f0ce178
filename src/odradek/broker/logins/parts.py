"""The parts of a broker that its listeners with SASL share."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.broker.logins.mechanisms import ListenerMechanisms, ScramUsers, TokenUsers
from odradek.broker.logins.session import LoginSession
from odradek.broker.partitions.private_directory import close_to_others
from odradek.broker.settings.listener_settings import ListenerSettings
from odradek.core.errors import StorageError

if TYPE_CHECKING:
    from odradek.broker.front_end.connection import ConnectionOwner
    from odradek.broker.logins.provider_keys import ProviderKeys
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.delegation_tokens import DelegationTokens
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.settings.listener import Listener
    from odradek.security.key_fetch import FetchTimes, KeySetSource

KEY_FILE = "login.key"
_KEY_BYTES = 32
_FIRST_KEYS_S = 15.0
"""How long a start waits for the keys of identity providers. Without them it goes on, and tries again."""


class Logins:
    """Makes the sessions of listeners with SASL. Raises StorageError."""

    def __init__(
        self,
        owner: ConnectionOwner,
        catalog: CatalogView,
        tokens: DelegationTokens | None,
        directory: LogDirectory,
        now_ms: Callable[[], int],
    ) -> None:
        close_to_others(directory.path, directory.files)
        self._owner = owner
        self._now_ms = now_ms
        key = _key(directory.path / KEY_FILE)
        by_token = None if tokens is None else TokenUsers(tokens, key, now_ms)
        self._scram = ScramUsers(catalog.users, catalog.credential_forms, key, by_token)
        self._providers: dict[KeySetSource, ProviderKeys] = {}

    def sessions(self, listener: Listener, owner: ConnectionOwner) -> Callable[[float | None], LoginSession]:
        """Returns the factory of the sessions of a listener. It gets the time of the acceptance, or None for now.

        ``owner``: serves the requests after the login."""
        settings = ListenerSettings(self._owner.config, listener)
        mechanisms = ListenerMechanisms(settings, self._scram, self._now_ms, self._keys_of)
        return lambda accepted_s: LoginSession(owner, listener.name, mechanisms, accepted_s=accepted_s)

    def _keys_of(self, source: KeySetSource, times: FetchTimes) -> ProviderKeys:
        keys = self._providers.get(source)
        if keys is None:
            from odradek.broker.logins.provider_keys import ProviderKeys

            keys = self._providers[source] = ProviderKeys(source, times)
            keys.begin()
        return keys

    async def prepare(self) -> None:
        """Waits for the first keys of identity providers, for a limited time."""
        if firsts := [one.first for one in self._providers.values()]:
            await asyncio.wait(firsts, timeout=_FIRST_KEYS_S)


def _key(path: Path) -> bytes:
    """Returns the secret from which the broker makes up the salts of unknown users, and writes it at the first start.

    It stays the same, because the salts of users stay the same, too."""
    try:
        try:
            key = path.read_bytes()
            if len(key) == _KEY_BYTES:
                return key
        except FileNotFoundError:
            pass
        key = secrets.token_bytes(_KEY_BYTES)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(key)
        return key
    except OSError as error:
        raise StorageError(f"{path} cannot be used: {error.strerror or error}") from error
