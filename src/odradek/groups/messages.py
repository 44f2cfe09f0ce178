"""Requests, replies, events and notices of the group coordinator, independent of API versions.

A handler makes the request from any version of an API and packs the reply for this version. It also adds the random
parts, such as a new member id, because a state machine may not make them. Every request is a ``core.effects.Request``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity

NO_MEMBER = ""


class GroupRequest(Protocol):
    """A request to one group: all but ``ListGroups`` and ``DeleteGroups``."""

    @property
    def group_id(self) -> str: ...


# --- offsets ----------------------------------------------------------------------------------------------------

#: partition, offset, leader epoch (-1: unknown), metadata (None: none)
PartitionCommit: TypeAlias = tuple[int, int, int, str | None]


class TopicCommit(NamedTuple):
    topic: str
    topic_id: bytes | None  # 16 bytes
    partitions: Sequence[PartitionCommit]


@dataclass(slots=True)
class OffsetCommit:
    """A commit. A consumer without group management and an admin client send ``generation_id`` -1 and no member id."""

    batched: ClassVar[bool] = True
    group_id: str
    topics: Sequence[TopicCommit]
    member_id: str = NO_MEMBER
    generation_id: int = -1
    group_instance_id: str | None = None
    retention_time_ms: int = -1  # only OffsetCommit v2 to v4 has it; -1: offsets.retention.minutes applies
    knows_group_id_not_found: bool = True  # whether v9 or later: older versions get another error

    def error_reply(self, error: ErrorCode) -> OffsetCommitReply:
        return OffsetCommitReply(error)


@dataclass(slots=True)
class TxnOffsetCommit:
    """A commit in a producer's transaction. ``commit`` has no retention time."""

    batched: ClassVar[bool] = True
    producer: ProducerIdentity
    commit: OffsetCommit

    @property
    def group_id(self) -> str:
        return self.commit.group_id

    def error_reply(self, error: ErrorCode) -> OffsetCommitReply:
        return self.commit.error_reply(error)


@dataclass(slots=True)
class OffsetCommitReply:
    """The reply to a commit. ``refused`` has the errors of single partitions. All other partitions have ``error``."""

    error: ErrorCode = ErrorCode.none
    refused: Mapping[tuple[str, int], ErrorCode] | None = None


@dataclass(slots=True)
class OffsetFetch:
    """A fetch of committed offsets. ``topics=None``: all offsets of the group."""

    batched: ClassVar[bool] = False
    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]] | None = None
    require_stable: bool = False
    member_id: str | None = None  # from v9 on: the id of a KIP-848 member, with its epoch
    member_epoch: int = -1

    def error_reply(self, error: ErrorCode) -> OffsetFetchReply:
        remapped = {
            # Old clients retry after NOT_COORDINATOR, but not after COORDINATOR_NOT_AVAILABLE.
            ErrorCode.coordinator_not_available: ErrorCode.not_coordinator,
        }
        return OffsetFetchReply(remapped.get(error, error))


class FetchedOffset(NamedTuple):
    partition: int
    offset: int  # -1: none committed
    leader_epoch: int
    metadata: str
    error: ErrorCode


class FetchedRows:
    """The offsets of one topic. ``values`` has a tuple per partition, which starts with offset, leader epoch, metadata.

    Equal requests may get the same object until the next commit. So the handler can keep the packed reply in ``memo``.
    An ``unstable`` partition gets the error UNSTABLE_OFFSET_COMMIT.
    """

    __slots__ = ("memo", "partitions", "unstable", "values")

    def __init__(
        self, partitions: Sequence[int], values: Sequence[tuple[Any, ...]], unstable: Collection[int] = ()
    ) -> None:
        self.partitions = partitions
        self.values = values
        self.unstable = unstable
        self.memo: bytes | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[FetchedOffset]:
        for partition, value in zip(self.partitions, self.values, strict=True):
            error = ErrorCode.unstable_offset_commit if partition in self.unstable else ErrorCode.none
            yield FetchedOffset(partition, value[0], value[1], value[2], error)


@dataclass(slots=True)
class OffsetFetchReply:
    """The committed offsets. ``topics`` can be iterated only once."""

    error: ErrorCode = ErrorCode.none
    topics: Iterable[tuple[str, FetchedRows]] = ()


@dataclass(slots=True)
class OffsetDelete:
    batched: ClassVar[bool] = False
    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]

    def error_reply(self, error: ErrorCode) -> OffsetDeleteReply:
        return OffsetDeleteReply(error)


@dataclass(slots=True)
class OffsetDeleteReply:
    error: ErrorCode = ErrorCode.none
    topics: Sequence[tuple[str, Sequence[tuple[int, ErrorCode]]]] = ()


# --- membership -------------------------------------------------------------------------------------------------


class MemberProtocol(NamedTuple):
    """An assignment strategy that a member supports, with the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class JoinGroup:
    """A join of a classic member. ``member_id`` is the id that the member has, or ''.

    A member that needs a new id gets ``new_member_id`` in a classic group. In a KIP-848 group it gets ``new_short_id``,
    or ``new_member_id`` if ``new_short_id`` is ''.
    """

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
    requires_known_member_id: bool = True  # from v4 on
    can_skip_assignment: bool = True  # from v9 on
    new_short_id: str = ""

    def error_reply(self, error: ErrorCode) -> JoinGroupReply:
        return JoinGroupReply(error)


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinGroupReply:
    """Only the leader's reply has ``members``."""

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

    def error_reply(self, error: ErrorCode) -> SyncGroupReply:
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

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        # While the coordinator loads, a heartbeat succeeds, so that the member stays in its group.
        return ErrorCode.none if error is ErrorCode.coordinator_load_in_progress else error


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None = None


@dataclass(slots=True)
class LeaveGroup:
    batched: ClassVar[bool] = False
    group_id: str
    members: Sequence[LeavingMember]

    def error_reply(self, error: ErrorCode) -> LeaveGroupReply:
        if error is ErrorCode.unknown_member_id:  # no such group
            return LeaveGroupReply(members=[(member, error) for member in self.members])
        return LeaveGroupReply(error)


@dataclass(slots=True)
class LeaveGroupReply:
    error: ErrorCode = ErrorCode.none
    members: Sequence[tuple[LeavingMember, ErrorCode]] = ()


# --- events and notices -----------------------------------------------------------------------------------------


class TopicsDeleted(NamedTuple):
    """An event: the groups' offsets of these topics are deleted."""

    topics: Collection[str]


class TopicsChanged(NamedTuple):
    """A notice: these topics were created (``created``), were deleted, or have more partitions."""

    topics: Collection[str]
    created: bool


# --- administration ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DescribeGroup:
    batched: ClassVar[bool] = False
    group_id: str

    def error_reply(self, error: ErrorCode) -> DescribedGroup:
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
    """An empty filter selects all groups. States and types are in lower case."""

    batched: ClassVar[bool] = False
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def error_reply(self, error: ErrorCode) -> ListGroupsReply:
        # Each broker lists only the groups of partitions that it leads. A partition of another broker is no error.
        return ListGroupsReply(ErrorCode.none if error is ErrorCode.not_coordinator else error)


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(slots=True)
class ListGroupsReply:
    error: ErrorCode = ErrorCode.none
    groups: Iterable[ListedGroup] = ()  # can be iterated only once


@dataclass(slots=True)
class DeleteGroups:
    """Deletes groups. All of them belong to the same partition of the offsets topic."""

    batched: ClassVar[bool] = False
    group_ids: Sequence[str]

    def error_reply(self, error: ErrorCode) -> list[tuple[str, ErrorCode]]:
        return [(group_id, error) for group_id in self.group_ids]
