"""A delegation token of the metadata log (KIP-48)."""

from __future__ import annotations

from typing import NamedTuple


class DelegationToken(NamedTuple):
    """A token without its secret, which is derived from its id. Principals are ``kind:name``, times ms since 1970.

    It ends at ``expiry_ms`` unless it is renewed, and at ``max_ms`` in any case."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int
    id: str

    def belongs_to(self, principal: str) -> bool:
        """Returns whether a principal is the owner, has requested the token or may renew it."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def is_expired(self, now_ms: int) -> bool:
        return self.expiry_ms < now_ms or self.max_ms < now_ms
