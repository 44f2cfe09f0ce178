"""The fencing of offsets: which requests may commit and fetch them, by kind of group.

A commit has a member id, an epoch (a classic group's generation; -1: none) and perhaps an instance id. The first row
that applies decides. If no row applies, the commit is accepted.

======= ==================================== ==========================================================
Group   Commit                               Error
======= ==================================== ==========================================================
none    without an epoch                     none: it creates a "simple" group
none    with an epoch                        GROUP_ID_NOT_FOUND, before v9 ILLEGAL_GENERATION
classic any, the group is Dead               COORDINATOR_NOT_AVAILABLE
classic without an epoch, the group is Empty none
classic without epoch and ids                UNKNOWN_MEMBER_ID
classic of an instance's earlier member      FENCED_INSTANCE_ID
classic of an unknown member or instance     UNKNOWN_MEMBER_ID
classic of another generation                ILLEGAL_GENERATION
classic during CompletingRebalance           REBALANCE_IN_PROGRESS: the assignment is not sent yet
KIP-848 without an epoch, the group is Empty none
KIP-848 of an unknown member                 UNKNOWN_MEMBER_ID
KIP-848 before v9, not of a classic member   UNSUPPORTED_VERSION: no member epochs before v9
KIP-848 of a later epoch than the member's   STALE_MEMBER_EPOCH, of a classic member ILLEGAL_GENERATION
KIP-848 of an earlier epoch, for a partition STALE_MEMBER_EPOCH, of a classic member ILLEGAL_GENERATION
        that the member did not have then
======= ==================================== ==========================================================

A commit in a transaction (TxnOffsetCommit, KIP-447) differs:

* With an epoch, if the group does not exist, the error is always ILLEGAL_GENERATION.
* Without epoch and ids, every group that is not Dead accepts it: older producers send no member (KAFKA-18060).
* A classic group accepts it during CompletingRebalance, too.
* A wrong epoch in a KIP-848 group is always ILLEGAL_GENERATION.

Only KIP-848 groups fence OffsetFetch. They accept a request without a member and an epoch, and a request of a known
member with its present epoch.
"""

from __future__ import annotations

from odradek.core.errors import ErrorCode
from odradek.core.ids import is_longer
from odradek.groups.classic.group import ClassicGroup, State
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.kip848.member import Kip848Member
from odradek.groups.messages import OffsetCommit


def check_classic_commit(group: ClassicGroup | None, request: OffsetCommit) -> ErrorCode:
    """Returns the error of a commit to a classic group, or to a group that does not exist. NONE: accepted."""
    if group is None:
        if request.generation_id < 0:
            return ErrorCode.none
        return ErrorCode.group_id_not_found if request.knows_group_id_not_found else ErrorCode.illegal_generation
    if group.state is State.DEAD:
        return ErrorCode.coordinator_not_available
    if request.generation_id < 0 and group.state is State.EMPTY:
        return ErrorCode.none
    if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.illegal_generation
    elif group.state is not State.EMPTY:
        return ErrorCode.unknown_member_id
    # The member has the new generation, but the group's leader has not sent the assignment yet.
    return ErrorCode.rebalance_in_progress if group.state is State.COMPLETING_REBALANCE else ErrorCode.none


def check_kip848_commit(group: Kip848Group, request: OffsetCommit, metadata_limit: int) -> ErrorCode:
    """Returns the error of a commit to a KIP-848 group. NONE: the commit is accepted.

    Partitions with too long metadata are skipped: they fail with their own error.
    """
    epoch = request.generation_id
    if epoch < 0 and group.is_empty:
        return ErrorCode.none
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if member.classic is None and not request.knows_group_id_not_found:
        return ErrorCode.unsupported_version
    if epoch == member.epoch:
        return ErrorCode.none
    if epoch > member.epoch:
        return _stale(member)
    for _, topic_id, partitions in request.topics:
        for partition, _, _, metadata in partitions:
            if metadata and is_longer(metadata, metadata_limit):
                continue
            since = None if topic_id is None else member.assignment_epoch(topic_id, partition)
            if since is None or epoch < since:
                return _stale(member)
    return ErrorCode.none


def check_classic_transactional_commit(group: ClassicGroup | None, request: OffsetCommit) -> ErrorCode:
    """Returns the error of a transactional commit to a classic group, or to a group that does not exist; or NONE."""
    if group is None:
        return ErrorCode.none if request.generation_id < 0 else ErrorCode.illegal_generation
    if group.state is State.DEAD:
        return ErrorCode.coordinator_not_available
    if request.generation_id < 0 and (group.state is State.EMPTY or _has_no_ids(request)):
        return ErrorCode.none
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return error
    return ErrorCode.none if request.generation_id == group.generation else ErrorCode.illegal_generation


def check_kip848_transactional_commit(group: Kip848Group, request: OffsetCommit, metadata_limit: int) -> ErrorCode:
    """Returns the error of a transactional commit to a KIP-848 group. NONE: the commit is accepted."""
    if request.generation_id == -1 and _has_no_ids(request):
        return ErrorCode.none
    error = check_kip848_commit(group, request, metadata_limit)
    return ErrorCode.illegal_generation if error is ErrorCode.stale_member_epoch else error


def _has_no_ids(request: OffsetCommit) -> bool:
    return not request.member_id and request.group_instance_id is None


def check_kip848_fetch(group: Kip848Group, member_id: str | None, epoch: int) -> ErrorCode:
    """Returns the error of an OffsetFetch for a KIP-848 group. NONE: the fetch is accepted."""
    if member_id is None and epoch < 0:
        return ErrorCode.none
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if epoch == member.epoch else _stale(member)


def _stale(member: Kip848Member) -> ErrorCode:
    return ErrorCode.stale_member_epoch if member.classic is None else ErrorCode.illegal_generation
