"""A ledger of accounts: a state machine for ``coordinator_runtime/`` without any relation to groups.

It uses all that a coordinator needs: parked requests, timers, steps, background work, events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from odradek.core.effects import (
    Block,
    CancelTimer,
    Complete,
    LogEntry,
    Park,
    Request,
    Result,
    ResultSteps,
    SetTimer,
    SimpleRecord,
    Work,
)
from odradek.core.errors import ErrorCode

WAIT_MS = 1000


@dataclass(slots=True)
class Deposit:
    """The reply is the new balance."""

    batched: ClassVar[bool] = False
    account: str
    amount: int

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class Open:
    """Opens an account with balance 0, or resets it to 0. The reply is 0."""

    batched: ClassVar[bool] = True
    account: str

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class Await:
    """Waits until a deposit makes the account's balance at least ``amount``. The reply is the balance, or
    REQUEST_TIMED_OUT after ``WAIT_MS``."""

    batched: ClassVar[bool] = True
    account: str
    amount: int

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class Total:
    """The reply is the sum of all balances, computed in steps or by background work."""

    batched: ClassVar[bool] = False
    aside: bool = False

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


class Closed(NamedTuple):
    """The event: an account is closed."""

    account: str


class Limit(NamedTuple):
    """The notice: from now on, no account may hold more than ``amount``."""

    amount: int


class Ledger:
    """A complete ``CoordinatorShard``: accounts and their balances, each a record, and the requests that wait for a
    balance."""

    reads: ClassVar[tuple[type, ...]] = ()

    def __init__(self, is_open: Callable[[str], bool], reply_limit_ms: int | None = None) -> None:
        self.skipped: Counter[str] = Counter()
        self.balances: dict[str, int] = {}
        self._is_open = is_open
        self._reply_limit_ms = reply_limit_ms
        self._limit = 1000
        self._waiting: set[tuple[str, int]] = set()

    def handle(self, now_ms: int, request: Request) -> Result | ResultSteps:
        if isinstance(request, Deposit):
            return self._deposit(request)
        if isinstance(request, Open):
            return Result(0, [SimpleRecord(request.account.encode(), b"0")])
        if isinstance(request, Await):
            key = request.account, request.amount
            self._waiting.add(key)
            return Result(effects=[Park(key), SetTimer(key, now_ms + WAIT_MS)])
        assert isinstance(request, Total)
        return Result(effects=[Park("total"), Work("total", self._sum())]) if request.aside else self._total()

    def _deposit(self, request: Deposit) -> Result:
        balance = self.balances.get(request.account, 0) + request.amount
        if balance > self._limit:
            return Result(ErrorCode.policy_violation)
        out = Result(balance, [SimpleRecord(request.account.encode(), b"%d" % balance)])
        for key in [one for one in self._waiting if one[0] == request.account and one[1] <= balance]:
            self._waiting.remove(key)
            out.effects += [CancelTimer(key), Complete(key, balance)]
        return out

    def _sum(self) -> Generator[None, None, int]:
        total = 0
        for balance in list(self.balances.values()):
            total += balance
            yield None
        return total

    def _total(self) -> ResultSteps:
        return Result((yield from self._sum()))

    def reply_to_dropped(self, request: Request, error: ErrorCode) -> Any:
        return request.error_reply(error)

    def changes_of(self, entry: LogEntry) -> list[str]:
        assert isinstance(entry, SimpleRecord)
        return [entry.key.decode()]

    def shown_to(self, request: Request) -> list[str] | None:
        return None if isinstance(request, Total) else [request.account]

    def reply_limit_ms(self, request: Request) -> int | None:
        return self._reply_limit_ms

    def on_refused(self, now_ms: int, entries: Sequence[LogEntry], error: ErrorCode) -> Result:
        return Result()  # the waiting requests of a refused deposit have the error already

    def replay(self, offset: int, record: SimpleRecord) -> None:
        account = record.key.decode()
        if record.value is None:
            self.balances.pop(account, None)
        else:
            self.balances[account] = int(record.value)

    def replay_block(self, offset: int, block: Block) -> None:
        raise AssertionError("a ledger makes none")

    def on_loaded(self, now_ms: int) -> Result:
        return Result()

    def catch_up(self, now_ms: int) -> Result:
        return Result(records=[SimpleRecord(one.encode(), None) for one in self.balances if not self._is_open(one)])

    def on_timer(self, now_ms: int, key: Hashable) -> Result:
        self._waiting.discard(key)
        return Result(effects=[Complete(key, ErrorCode.request_timed_out)])

    def on_work(self, now_ms: int, key: Hashable, value: Any) -> Result:
        return Result(effects=[Complete(key, value)])

    def on_event(self, now_ms: int, event: object) -> Result:
        assert isinstance(event, Closed)
        return Result(records=[SimpleRecord(event.account.encode(), None)])

    def on_notice(self, notice: object) -> None:
        assert isinstance(notice, Limit)
        self._limit = notice.amount

    def on_clock_jumped(self, by_ms: int) -> None:
        """A ledger stores no times."""
