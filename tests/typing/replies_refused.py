"""Handlers and replies that mypy refuses, one in each line that ends with ``# refused``.

``test_reply_types`` reads this file.
"""

from __future__ import annotations

from odradek.core.effects import Request, Result, ResultOrSteps, ResultParts, ResultSteps
from odradek.core.errors import ErrorCode
from odradek.core.state_machines.tables import RequestTable
from odradek.groups.messages import Heartbeat, JoinGroup, JoinGroupReply, SyncGroup, SyncGroupReply
from odradek.groups.shard import GroupShard
from odradek.transactions.messages import AddPartitions, EndTransaction
from odradek.transactions.shard import TransactionShard


def joined(now_ms: int, request: JoinGroup) -> Result[JoinGroupReply]:
    return Result(SyncGroupReply())  # refused


def joined_in_steps(now_ms: int, request: JoinGroup) -> ResultSteps[JoinGroupReply]:
    out: Result[JoinGroupReply] = Result()
    yield None
    out.reply = ErrorCode.none  # refused
    return out


def synced(now_ms: int, request: JoinGroup) -> Result[SyncGroupReply]:
    return Result()


def synced_in_steps(now_ms: int, request: JoinGroup) -> ResultSteps[SyncGroupReply]:
    yield None
    return Result()


def synced_in_any_way(now_ms: int, request: JoinGroup) -> ResultOrSteps[SyncGroupReply]:
    return Result()


def untyped(now_ms: int, request: JoinGroup) -> Result[object]:
    return Result(1)


def one_of_two(now_ms: int, request: JoinGroup) -> Result[JoinGroupReply | SyncGroupReply]:
    return Result()


def number(now_ms: int, request: Heartbeat) -> Result[int]:
    return Result(0)


def set_reply(out: ResultParts) -> None:
    out.reply = ErrorCode.none  # refused


def fill(table: RequestTable, groups: GroupShard, transactions: TransactionShard) -> None:
    table.add(JoinGroup, synced)  # refused
    table.add(JoinGroup, synced_in_steps)  # refused
    table.add(JoinGroup, synced_in_any_way)  # refused
    table.add(JoinGroup, untyped)  # refused
    table.add(JoinGroup, one_of_two)  # refused
    table.add(SyncGroup, joined)  # refused
    table.add(Heartbeat, number)  # refused
    table.add(JoinGroup, groups._sync)  # refused
    table.add(EndTransaction, transactions._add)  # refused
    table.add(int, number)  # refused


def as_join(request: AddPartitions) -> Request[JoinGroupReply]:
    return request  # refused


def handle(groups: GroupShard, request: AddPartitions) -> ResultOrSteps[JoinGroupReply]:
    return groups.handle(0, request)  # refused
