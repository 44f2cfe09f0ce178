"""Handlers that a table of requests accepts (test_reply_types)."""

from __future__ import annotations

from odradek.core.effects import Result, ResultOrSteps, ResultParts, ResultSteps, SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.state_machines.tables import RequestTable
from odradek.groups.messages import Heartbeat, JoinGroup, JoinGroupReply


def heartbeat(now_ms: int, request: Heartbeat) -> Result[ErrorCode]:
    return Result(ErrorCode.none)


def join_in_steps(now_ms: int, request: JoinGroup) -> ResultSteps[JoinGroupReply]:
    out: Result[JoinGroupReply] = Result()
    yield None
    add_record(out)
    out.reply = JoinGroupReply(ErrorCode.none)
    return out


def join(now_ms: int, request: JoinGroup) -> ResultOrSteps[JoinGroupReply]:
    return join_in_steps(now_ms, request) if request.member_id else Result(request.error_reply(ErrorCode.none))


def of_any(now_ms: int, request: object) -> Result[ErrorCode]:
    return Result(ErrorCode.none)


def add_record(out: ResultParts) -> None:
    out.records.append(SimpleRecord(b"k", None))


def fill(table: RequestTable) -> None:
    table.add(Heartbeat, heartbeat)
    table.add(Heartbeat, of_any)
    table.add(JoinGroup, join_in_steps)
    table.add(JoinGroup, join)
