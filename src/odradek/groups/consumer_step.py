"""One member of a KIP-848 group half-way through its request."""

from __future__ import annotations

from typing import NamedTuple

from odradek.groups.consumer_group import ConsumerGroup, Subscriptions
from odradek.groups.consumer_member import ConsumerMember


class Step(NamedTuple):
    """``member`` as it was at ``now_ms``, or is new; ``updated`` as its request makes it.

    ``standing`` holds its place in the group so far: itself, the static member it replaces, or None.
    """

    now_ms: int
    group: ConsumerGroup
    member: ConsumerMember
    updated: ConsumerMember
    standing: ConsumerMember | None

    def subscriptions(self) -> Subscriptions:
        """Those of the group behind the request."""
        return self.group.subscriptions_after([] if self.standing is None else [self.standing], self.updated)
