"""Requests and replies of the group coordinator, free of wire versions, and what it learns of the world outside.

A handler makes the request from whatever version came, adds what a state machine may not make itself (a new member
id), and packs the reply for that version. Every request is a ``core.effects.Request``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from odradek.core.errors import ErrorCode

NO_MEMBER = ""

# --- offsets ----------------------------------------------------------------------------------------------------

#: partition, offset, leader epoch (-1: unknown), metadata (None: none)
PartitionCommit: TypeAlias = tuple[int, int, int, str | None]


class TopicCommit(NamedTuple):
    topic: str
    topic_id: bytes | None  # 16 bytes
    partitions: Sequence[PartitionCommit]


@dataclass(slots=True)
class OffsetCommit:
    """``generation_id`` -1 with an empty ``member_id``: a consumer without group management, or an admin client."""

    batched: ClassVar[bool] = True
    group_id: str
    topics: Sequence[TopicCommit]
    member_id: str = NO_MEMBER
    generation_id: int = -1
    group_instance_id: str | None = None
    retention_time_ms: int = -1  # OffsetCommit v2 to v4 only; -1: the broker's
    knows_group_id_not_found: bool = True  # v9 on; older clients are told ILLEGAL_GENERATION

    def failed(self, error: ErrorCode) -> OffsetCommitReply:
        return OffsetCommitReply(error)


@dataclass(slots=True)
class OffsetCommitReply:
    """``error`` holds for every partition, except those that ``refused`` names with an error of their own."""

    error: ErrorCode = ErrorCode.none
    refused: Mapping[tuple[str, int], ErrorCode] | None = None


@dataclass(slots=True)
class OffsetFetch:
    """``topics=None``: everything the group has committed."""

    batched: ClassVar[bool] = False
    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]] | None = None
    require_stable: bool = False
    member_id: str | None = None  # v9 on: a KIP-848 member says who it is and in which epoch
    member_epoch: int = -1

    def failed(self, error: ErrorCode) -> OffsetFetchReply:
        remapped = {
            ErrorCode.coordinator_not_available: ErrorCode.not_coordinator,  # older clients retry only on this one
        }
        return OffsetFetchReply(remapped.get(error, error))


class FetchedOffset(NamedTuple):
    partition: int
    offset: int  # -1: none committed
    leader_epoch: int
    metadata: str
    error: ErrorCode


class FetchedRows:
    """The answer for one topic: partitions, and for each a tuple that begins with offset, leader epoch and metadata.

    It is the same object as long as nothing was committed and the same is asked, so that who packs it may keep the
    result in ``memo``.
    """

    __slots__ = ("memo", "partitions", "values")

    def __init__(self, partitions: Sequence[int], values: Sequence[tuple[Any, ...]]) -> None:
        self.partitions = partitions
        self.values = values
        self.memo: bytes | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[FetchedOffset]:
        for partition, value in zip(self.partitions, self.values, strict=True):
            yield FetchedOffset(partition, value[0], value[1], value[2], ErrorCode.none)


@dataclass(slots=True)
class OffsetFetchReply:
    """``topics`` can be read once."""

    error: ErrorCode = ErrorCode.none
    topics: Iterable[tuple[str, FetchedRows]] = ()


@dataclass(slots=True)
class OffsetDelete:
    batched: ClassVar[bool] = False
    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]

    def failed(self, error: ErrorCode) -> OffsetDeleteReply:
        return OffsetDeleteReply(error)


@dataclass(slots=True)
class OffsetDeleteReply:
    error: ErrorCode = ErrorCode.none
    topics: Sequence[tuple[str, Sequence[tuple[int, ErrorCode]]]] = ()


# --- membership -------------------------------------------------------------------------------------------------


class MemberProtocol(NamedTuple):
    """One assignment strategy a member supports, with what it says about itself to that strategy's leader."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class JoinGroup:
    """``new_member_id`` is the id to use should the member need one, ``new_short_id`` that for a KIP-848 group ('': the
    same); ``member_id`` the one it has, or ''."""

    batched: ClassVar[bool] = False
    group_id: str
    member_id: str
    new_member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    group_instance_id: str | None = None
    requires_known_member_id: bool = True  # JoinGroup v4 on
    can_skip_assignment: bool = True  # v9 on
    new_short_id: str = ""

    def failed(self, error: ErrorCode) -> JoinGroupReply:
        return JoinGroupReply(error)


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinGroupReply:
    """Only the leader's reply lists ``members``."""

    error: ErrorCode = ErrorCode.none
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    member_id: str = NO_MEMBER
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


@dataclass(slots=True)
class SyncGroup:
    batched: ClassVar[bool] = False
    group_id: str
    member_id: str
    generation_id: int
    assignments: Mapping[str, bytes]
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None

    def failed(self, error: ErrorCode) -> SyncGroupReply:
        return SyncGroupReply(error)


@dataclass(slots=True)
class SyncGroupReply:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class Heartbeat:
    batched: ClassVar[bool] = True
    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None

    def failed(self, error: ErrorCode) -> ErrorCode:
        # A member should not lose heart because its coordinator is still reading the log.
        return ErrorCode.none if error is ErrorCode.coordinator_load_in_progress else error


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None = None


@dataclass(slots=True)
class LeaveGroup:
    batched: ClassVar[bool] = False
    group_id: str
    members: Sequence[LeavingMember]

    def failed(self, error: ErrorCode) -> LeaveGroupReply:
        if error is ErrorCode.unknown_member_id:  # no such group
            return LeaveGroupReply(members=[(member, error) for member in self.members])
        return LeaveGroupReply(error)


@dataclass(slots=True)
class LeaveGroupReply:
    error: ErrorCode = ErrorCode.none
    members: Sequence[tuple[LeavingMember, ErrorCode]] = ()


# --- what happens outside ---------------------------------------------------------------------------------------


class TopicsDeleted(NamedTuple):
    """An event: what groups have committed for these topics goes."""

    topics: Collection[str]


class TopicsChanged(NamedTuple):
    """A notice: these topics came (``created``), went, or have more partitions."""

    topics: Collection[str]
    created: bool


# --- administration ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DescribeGroup:
    batched: ClassVar[bool] = False
    group_id: str

    def failed(self, error: ErrorCode) -> DescribedGroup:
        return DescribedGroup(self.group_id, error)


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class DescribedGroup:
    group_id: str
    error: ErrorCode = ErrorCode.none
    error_message: str | None = None
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[DescribedMember] = ()


@dataclass(slots=True)
class ListGroups:
    """Empty filters: all. States and types are compared without regard to case."""

    batched: ClassVar[bool] = False
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def failed(self, error: ErrorCode) -> ListGroupsReply:
        # A partition that is led elsewhere has its groups listed there.
        return ListGroupsReply(ErrorCode.none if error is ErrorCode.not_coordinator else error)


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(slots=True)
class ListGroupsReply:
    error: ErrorCode = ErrorCode.none
    groups: Iterable[ListedGroup] = ()  # can be read once


@dataclass(slots=True)
class DeleteGroups:
    """Groups of one partition."""

    batched: ClassVar[bool] = False
    group_ids: Sequence[str]

    def failed(self, error: ErrorCode) -> list[tuple[str, ErrorCode]]:
        return [(group_id, error) for group_id in self.group_ids]
