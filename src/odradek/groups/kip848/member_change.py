"""The state of a KIP-848 member's request between its checks and its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from odradek.groups.kip848.group import Kip848Group, Subscriptions
from odradek.groups.kip848.member import Kip848Member


class MemberChange(NamedTuple):
    """A member before its request (``member``, perhaps new) and after it (``updated``).

    ``existing`` is the group's member before the request: the member under the same id, the static member that
    ``updated`` replaces, or None if the member is new.
    """

    now_ms: int
    group: Kip848Group
    member: Kip848Member
    updated: Kip848Member
    existing: Kip848Member | None
    may_describe: Callable[[str], bool] | None = None
    """Whether the client may describe a topic; None: all topics."""

    def subscriptions(self) -> Subscriptions:
        """Returns the group's subscriptions after the request."""
        return self.group.subscriptions_after([] if self.existing is None else [self.existing], self.updated)
