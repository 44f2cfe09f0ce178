"""The tables of the shards: every request has a handler, and names what it is about."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.effects import Result
from odradek.core.errors import ErrorCode
from odradek.core.state_machines.tables import RequestTable
from odradek.groups import messages as group_messages
from odradek.groups.config import GroupConfig
from odradek.groups.kip848 import messages as kip848_messages
from odradek.groups.offsets import commit_plan
from odradek.groups.shard import GroupShard
from odradek.transactions import messages as transaction_messages
from odradek.transactions.config import TransactionConfig
from odradek.transactions.shard import TransactionShard


def requests_in(*modules: Any) -> set[type]:
    return {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == module.__name__ and hasattr(one, "error_reply")
    }


GROUPS = requests_in(group_messages, kip848_messages, commit_plan)
TRANSACTIONS = requests_in(transaction_messages)


def test_a_shard_handles_every_request() -> None:
    groups = GroupShard(GroupConfig())
    transactions = TransactionShard(TransactionConfig(), lambda: 1, lambda: 2, lambda: 0)
    assert groups.requests.by_type.keys() == GROUPS
    assert transactions.requests.by_type.keys() == TRANSACTIONS


@pytest.mark.parametrize("kind", sorted(GROUPS, key=lambda one: one.__name__))
def test_a_request_to_one_group_names_it(kind: type) -> None:
    """A reply without records waits for the earlier changes of this group (``GroupShard.shown_to``)."""
    lists = (group_messages.ListGroups, group_messages.DeleteGroups)
    assert hasattr(kind, "group_id") == (kind not in lists)


@pytest.mark.parametrize("kind", sorted(TRANSACTIONS, key=lambda one: one.__name__))
def test_a_request_to_one_transactional_id_names_it(kind: type) -> None:
    assert hasattr(kind, "transactional_id") == (kind is not transaction_messages.ListTransactions)


def test_a_table_has_the_handlers_by_type() -> None:
    table, result = RequestTable(), Result(ErrorCode.none)
    table.add(group_messages.Heartbeat, lambda now_ms, request: result)
    assert table.by_type[group_messages.Heartbeat](5, group_messages.Heartbeat("g", "m", None, 1)) is result
