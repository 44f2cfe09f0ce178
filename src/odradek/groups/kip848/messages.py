"""Requests and replies of KIP-848 groups, independent of API versions, in the style of groups/messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from odradek.core.errors import ErrorCode
from odradek.groups.kip848.member import Kip848Member, Partitions


@dataclass(slots=True)
class Kip848Heartbeat:
    """ConsumerGroupHeartbeat.

    None, or -1 in ``rebalance_timeout_ms``, means that the value is unchanged. A member that uses version 0 of the API
    joins without an id and gets ``new_member_id``. From version 1 on a member makes its own id (``names_itself``).
    """

    batched: ClassVar[bool] = False
    group_id: str
    member_id: str
    member_epoch: int
    new_member_id: str
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: Sequence[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Mapping[bytes, Collection[int]] | None = None
    names_itself: bool = True
    may_describe: Callable[[str], bool] | None = None
    """Whether the client may describe a topic. A pattern matches no other topics. None: it may describe all topics."""

    def error_reply(self, error: ErrorCode) -> Kip848HeartbeatReply:
        return Kip848HeartbeatReply(error)


@dataclass(slots=True)
class Kip848HeartbeatReply:
    """The reply to a heartbeat. ``assignment`` is None if it is unchanged."""

    error: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class DescribeKip848Group:
    batched: ClassVar[bool] = False
    group_id: str

    def error_reply(self, error: ErrorCode) -> DescribedKip848Group:
        return DescribedKip848Group(self.group_id, error)


@dataclass(slots=True)
class DescribedKip848Group:
    """A KIP-848 group. ``members`` has each member with its target assignment."""

    group_id: str
    error: ErrorCode = ErrorCode.none
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: Sequence[tuple[Kip848Member, Partitions]] = ()
