"""ListTransactions while a partition of ``__transaction_state`` loads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from odradek.broker.handlers.k66_list_transactions import _find
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.transactions.messages import ListedTransactions


def test_no_partition_is_listed_while_another_one_loads() -> None:
    """Tools repeat the request until all partitions have loaded, so each list would delay the load."""
    asked: list[int] = []

    def submit(index: int, request: Any) -> Deferred[ListedTransactions]:
        asked.append(index)
        error = ErrorCode.coordinator_load_in_progress if index == 3 else ErrorCode.none
        return Deferred.of(ListedTransactions(error))

    loaded = {1: object(), 2: object(), 3: None, 4: object()}
    runtime = SimpleNamespace(partitions=lambda: sorted(loaded), shard=loaded.get, submit=submit)
    broker: Any = SimpleNamespace(coordinators=SimpleNamespace(runtime=lambda kind: runtime))
    message: Any = SimpleNamespace(producer_id_filters=(), duration_filter=-1)
    context: Any = SimpleNamespace(version=1)

    def found() -> Any:
        asked.clear()
        steps = _find(broker, context, message, None)
        value: Any = None
        while True:
            try:
                step = steps.send(value)
            except StopIteration as end:
                return end.value
            value = None if step is None else step.value

    assert found() == (ErrorCode.coordinator_load_in_progress, [])
    assert asked == [3]
    loaded.pop(3)
    assert found() == (ErrorCode.none, [])
    assert asked == [1, 2, 4]
