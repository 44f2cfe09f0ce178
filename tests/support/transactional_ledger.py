"""A ledger with transactions: the balances that a producer sets take effect when its transaction commits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar

from odradek.core.effects import Request, Result, ResultSteps, SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity
from support.ledger import Ledger


@dataclass(slots=True)
class Put:
    """Sets the balances of accounts in a producer's transaction. The reply is the number of accounts."""

    batched: ClassVar[bool] = True
    producer: ProducerIdentity
    balances: dict[str, int]

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


class TransactionalLedger(Ledger):
    def __init__(self, is_open: Callable[[str], bool]) -> None:
        super().__init__(is_open)
        self.open: dict[int, dict[str, int]] = {}

    def handle(self, now_ms: int, request: Request) -> Result | ResultSteps:
        if not isinstance(request, Put):
            return super().handle(now_ms, request)
        records = [SimpleRecord(account.encode(), b"%d" % balance) for account, balance in request.balances.items()]
        return Result(len(records), records, producer=request.producer)

    def replay_transactional(self, offset: int, record: SimpleRecord, producer_id: int) -> None:
        self.open.setdefault(producer_id, {})[record.key.decode()] = int(record.value or b"")

    def end_transaction(self, producer_id: int, *, commit: bool) -> Generator[None, None, None]:
        for account, balance in self.open.pop(producer_id, {}).items():
            if commit:
                self.balances[account] = balance
            yield
