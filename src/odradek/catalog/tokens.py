"""Delegation tokens in the metadata log (KIP-48): new ones, renewals, ends. Kafka's DelegationTokenControlManager."""

from __future__ import annotations

from typing import NamedTuple

from odradek.core.access.delegation_token import DelegationToken
from odradek.core.errors import ErrorCode, KafkaError

FOREVER_MS = (1 << 63) - 1
"""A sum of times that is larger has this value, as in Kafka."""
MAX_RENEWERS = 1000


class PutToken(NamedTuple):
    """Adds a token, or replaces it by one with another end."""

    token: DelegationToken


class RemoveToken(NamedTuple):
    """Removes a token. One that does not exist makes no record."""

    id: str


class TokenTimes(NamedTuple):
    """The settings: the longest life of a token, and its life without a renewal, in ms."""

    max_ms: int
    renewal_ms: int

    def of_new(self, now_ms: int, asked_ms: int) -> tuple[int, int]:
        """Returns the last end and the first end of a new token. ``asked_ms``: the longest life, if it is positive."""
        most_ms = min(self.max_ms, asked_ms) if asked_ms > 0 else self.max_ms
        last_ms = min(now_ms + most_ms, FOREVER_MS)
        return last_ms, min(last_ms, now_ms + self.renewal_ms)

    def renewed(self, token: DelegationToken, renewer: str, now_ms: int, asked_ms: int) -> DelegationToken:
        """Returns the token with a later end. Raises KafkaError."""
        check_end(token, now_ms)
        check_right(token, renewer)
        period_ms = min(self.renewal_ms, asked_ms) if asked_ms > 0 else self.renewal_ms
        return token._replace(expiry_ms=min(token.max_ms, now_ms + period_ms))


def ended(token: DelegationToken, renewer: str, now_ms: int, asked_ms: int) -> DelegationToken | None:
    """Returns the token with another end; None if it ends at once. Raises KafkaError."""
    check_right(token, renewer)
    if asked_ms < 0:
        return None
    check_end(token, now_ms)
    return token._replace(expiry_ms=min(token.max_ms, now_ms + asked_ms, FOREVER_MS))


def check_end(token: DelegationToken, now_ms: int) -> None:
    """Raises KafkaError (DELEGATION_TOKEN_EXPIRED) if the token has ended."""
    if token.is_expired(now_ms):
        raise KafkaError(ErrorCode.delegation_token_expired)


def check_right(token: DelegationToken, renewer: str) -> None:
    """Raises KafkaError (DELEGATION_TOKEN_OWNER_MISMATCH) for a principal that may not change the token's end."""
    if renewer != token.owner and renewer not in token.renewers:
        raise KafkaError(ErrorCode.delegation_token_owner_mismatch)
