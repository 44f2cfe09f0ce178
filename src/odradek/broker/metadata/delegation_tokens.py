"""The delegation tokens of a broker (KIP-48): their secrets, and the removal of those that have ended.

The secret of a token is the HMAC of its id with ``delegation.token.secret.key``, as in Kafka. It is in no file. Only a
broker with such a key loads this module.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps, value_of
from odradek.broker.metadata.change import MAX_CHANGE_RECORDS
from odradek.catalog.tokens import RemoveToken, TokenTimes
from odradek.core.errors import KafkaError
from odradek.core.pace import Pace
from odradek.security.secret import Secret

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.loop.scheduler import Scheduler
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.change import Change
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta
    from odradek.core.access.delegation_token import DelegationToken
    from odradek.core.deferred import Deferred

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class TokenController(Protocol):
        """The controller, which commits the removal of tokens."""

        def write(self, operation: Callable[[Change], Steps[None]]) -> Deferred[None]: ...

    class TokenBroker(Protocol):
        """The parts of a broker that the removal of tokens uses."""

        scheduler: Scheduler

        @property
        def controller(self) -> TokenController: ...

        def now_ms(self) -> int: ...


log = logging.getLogger("odradek.broker")


class DelegationTokens:
    """Finds tokens by id or by secret. Follows the catalogue as a publisher."""

    def __init__(self, key: Secret, times: TokenTimes, check_interval_ms: int = 3_600_000) -> None:
        self._key = key
        self.times = times
        self.check_interval_ms = check_interval_ms
        self._tokens: dict[str, DelegationToken] = {}
        self._ids: dict[bytes, str] = {}
        """Digest of a secret → id. A dictionary of the secrets themselves would compare them."""

    @classmethod
    def of(cls, config: BrokerConfig) -> DelegationTokens:
        times = TokenTimes(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        return cls(
            Secret(config.delegation_token_secret_key or ""), times, config.delegation_token_expiry_check_interval_ms
        )

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> Steps[None] | None:
        return (
            self._apply({token_id: image.tokens().get(token_id) for token_id in delta.tokens}) if delta.tokens else None
        )

    def _apply(self, changes: Mapping[str, DelegationToken | None]) -> Steps[None]:
        pace = Pace()
        for token_id, token in changes.items():
            digest = _digest(self.secret(token_id))
            if token is None:
                self._tokens.pop(token_id, None)
                self._ids.pop(digest, None)
            else:
                self._tokens[token_id] = token
                self._ids[digest] = token_id
            if pace.spend():
                yield None

    # --- secrets ------------------------------------------------------------------------------------------------

    def secret(self, token_id: str) -> bytes:
        """Returns the HMAC of a token."""
        return hmac.digest(self._key.reveal().encode(), token_id.encode(), "sha512")

    def password(self, token_id: str) -> Secret:
        """Returns what a client has as the password of a login."""
        return Secret(base64.b64encode(self.secret(token_id)).decode())

    def find(self, secret: bytes) -> DelegationToken | None:
        """Returns the token with a secret."""
        token_id = self._ids.get(_digest(secret))
        if token_id is None or not hmac.compare_digest(self.secret(token_id), secret):
            return None
        return self._tokens.get(token_id)

    def get(self, token_id: str) -> DelegationToken | None:
        return self._tokens.get(token_id)

    def __repr__(self) -> str:
        return f"DelegationTokens({len(self._tokens)})"

    # --- ends ---------------------------------------------------------------------------------------------------

    def remove_ended(self, broker: TokenBroker) -> None:
        """Removes tokens that have ended, as many as one change of the catalogue may have."""
        broker.scheduler.start(self._remove(broker.controller, broker.now_ms()))

    def _remove(self, controller: TokenController, now_ms: int) -> Steps[None]:
        def remove(change: Change) -> Steps[None]:
            pace = Pace()
            for token in tuple(self._tokens.values()):
                if token.is_expired(now_ms) and len(change.records) < MAX_CHANGE_RECORDS:
                    log.info("the delegation token %s of %r has ended", token.id, token.owner)
                    yield from change.add(RemoveToken(token.id))
                if pace.spend():
                    yield None

        try:
            yield from value_of(controller.write(remove))
        except KafkaError as error:
            log.warning("delegation tokens that have ended cannot be removed now: %s", error.message)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
