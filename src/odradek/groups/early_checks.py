"""The checks of group requests that need no group state. Kafka makes them before it looks for the coordinator.

So a bad request gets its own error even if ``__consumer_offsets`` does not exist or is still loading.
"""

from __future__ import annotations

from odradek.core.effects import Request
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.checks import check_request
from odradek.groups.kip848.messages import DescribeKip848Group, Kip848Heartbeat, Kip848HeartbeatReply
from odradek.groups.messages import Heartbeat, JoinGroup, JoinGroupReply, LeaveGroup, OffsetDelete, SyncGroup

_NAMES_A_GROUP = (SyncGroup, Heartbeat, LeaveGroup, OffsetDelete, DescribeKip848Group)


def early_refusal(config: GroupConfig, request: Request[object]) -> object | None:
    """Returns the reply to a request that no group accepts; None if the request passes the checks."""
    if isinstance(request, Kip848Heartbeat):
        try:
            check_request(request, config.consumer_assignors)
        except KafkaError as error:
            return Kip848HeartbeatReply(error.code, error.message or None)
    elif isinstance(request, JoinGroup):
        code = join_error(config, request)
        return None if code is ErrorCode.none else JoinGroupReply(code, member_id=request.member_id)
    elif isinstance(request, _NAMES_A_GROUP) and not request.group_id:
        return request.error_reply(ErrorCode.invalid_group_id)
    return None


def join_error(config: GroupConfig, request: JoinGroup) -> ErrorCode:
    """Returns the error of a JoinGroup that no group accepts, or ``ErrorCode.none``."""
    if not request.group_id:
        return ErrorCode.invalid_group_id
    timeout_ms = request.session_timeout_ms
    if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
        return ErrorCode.invalid_session_timeout
    return ErrorCode.none
