"""The state of a KIP-848 member's request between its checks and its records."""

from __future__ import annotations

from typing import NamedTuple

from odradek.groups.consumer_group import ConsumerGroup, Subscriptions
from odradek.groups.consumer_member import ConsumerMember


class MemberChange(NamedTuple):
    """A member before its request (``member``, perhaps new) and after it (``updated``).

    ``existing`` is the member that the group has in its place: the same member, the static member that it replaces, or
    None.
    """

    now_ms: int
    group: ConsumerGroup
    member: ConsumerMember
    updated: ConsumerMember
    existing: ConsumerMember | None

    def subscriptions(self) -> Subscriptions:
        """Returns the group's subscriptions after the request."""
        return self.group.subscriptions_after([] if self.existing is None else [self.existing], self.updated)
