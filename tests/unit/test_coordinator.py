"""The room ``coordinator/`` without groups: a ledger of accounts, driven by the real runtime on real logs.

The ledger has what the next coordinator needs, too: requests that wait, timers, steps, work aside, events, a rebuild.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from support.world import START_MS, Process, World
from support.world_log import WorldLog

from odradek.coordinator.runtime import Runtime
from odradek.core.deferred import Deferred
from odradek.core.effects import (
    Block,
    CancelTimer,
    Complete,
    Park,
    Request,
    Result,
    SetTimer,
    SimpleRecord,
    Steps,
    Work,
)
from odradek.core.errors import ErrorCode, KafkaError

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "odradek"
ROOM = sorted((SOURCE / "coordinator").glob("*.py"))
WAIT_MS = 1000


@dataclass(slots=True)
class Deposit:
    """The reply is the new balance."""

    batched: ClassVar[bool] = False
    account: str
    amount: int

    def failed(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class Open:
    """Opens an account, whatever was in it; the reply is 0."""

    batched: ClassVar[bool] = True
    account: str

    def failed(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class Await:
    """Waits until the account holds so much; the reply is its balance, REQUEST_TIMED_OUT after ``WAIT_MS``."""

    batched: ClassVar[bool] = True
    account: str
    amount: int

    def failed(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class Total:
    """The reply is the sum of all balances, counted in steps or aside."""

    batched: ClassVar[bool] = False
    aside: bool = False

    def failed(self, error: ErrorCode) -> ErrorCode:
        return error


class Closed(NamedTuple):
    """The event: an account is closed."""

    account: str


class Limit(NamedTuple):
    """The notice: from now on no account may hold more."""

    amount: int


class Ledger:
    """Accounts and their balances, each a record; who waits for a balance. The whole of a ``CoordinatorShard``."""

    def __init__(self, is_open: Callable[[str], bool]) -> None:
        self.skipped: Counter[str] = Counter()
        self.balances: dict[str, int] = {}
        self._is_open = is_open
        self._limit = 1000
        self._waiting: set[tuple[str, int]] = set()

    def handle(self, now_ms: int, request: Request) -> Result | Steps:
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

    def _total(self) -> Steps:
        return Result((yield from self._sum()))

    def dropped(self, request: Request, error: ErrorCode) -> Any:
        return request.failed(error)

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
        """A ledger holds no times."""


class Bank:
    """Two ledgers on logs in memory, and a clock that tests move."""

    def __init__(self) -> None:
        self.world = World()
        self.process = Process(self.world)
        self.closed: set[str] = set()
        self.logs = [WorldLog(self.world, index, topic="__ledger") for index in range(2)]
        self._begin()

    def start(self) -> None:
        """As after kill -9: a new runtime reads the logs."""
        self.process.kill()
        for log in self.logs:
            log.crash()
        self.process = Process(self.world)
        self._begin()

    def _begin(self) -> None:
        self.runtime = Runtime(
            "__ledger",
            lambda batch_bytes: Ledger(lambda account: account not in self.closed),
            self.process.environment(),
        )
        self.runtime.partition_count = len(self.logs)
        for log in self.logs:
            self.runtime.load(log.index, log)
        self.world.settle()

    def ask(self, request: Request, index: int = 0) -> Deferred[Any]:
        """Hands a request in without letting the tick end."""
        return self.runtime.submit(index, request)

    def call(self, request: Request, index: int = 0) -> Any:
        answer = self.ask(request, index)
        self.world.settle()
        return answer.value

    def balances(self, index: int = 0) -> dict[str, int]:
        ledger = self.runtime.machine(index)
        assert ledger is not None
        return ledger.balances


@pytest.fixture
def bank() -> Bank:
    return Bank()


# --- requests and the log ---------------------------------------------------------------------------------------


def test_a_request_is_answered_when_its_record_is_in_the_log(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Deferred[Any] = Deferred()
    before: list[tuple[bool, dict[str, int]]] = []
    append = WorldLog.append

    def watched(log: WorldLog, *args: Any, **options: Any) -> Any:
        before.append((answer.resolved, dict(bank.balances())))
        return append(log, *args, **options)

    monkeypatch.setattr(WorldLog, "append", watched)
    bank.runtime.submit_for(0, Deposit("a", 5), answer)
    assert before == [(False, {})]
    assert (answer.value, bank.balances(), bank.logs[0].log_end_offset) == (5, {"a": 5}, 1)


def test_batched_requests_of_a_tick_share_a_batch_and_any_other_finds_them_replayed(bank: Bank) -> None:
    opened = [bank.ask(Open("a")), bank.ask(Open("b"))]
    assert ([one.resolved for one in opened], bank.balances(), bank.logs[0].log_end_offset) == ([False, False], {}, 0)
    total = bank.ask(Deposit("a", 5))
    assert [one.value for one in (*opened, total)] == [0, 0, 5]
    assert len(bank.logs[0].batches) == 2
    bank.ask(Open("a"))
    bank.world.settle()
    assert bank.balances() == {"a": 0, "b": 0}


@pytest.mark.parametrize(("kind", "is_rebuilt"), [(Open, False), (lambda name: Deposit(name, 1), True)])
def test_a_request_whose_records_fit_into_no_batch_is_refused(
    bank: Bank, kind: Callable[[str], Request], is_rebuilt: bool
) -> None:
    """A batched one has changed nothing else; of any other the machine may believe that its records were written."""
    bank.call(Deposit("a", 5))
    before, waiting = bank.runtime.machine(0), bank.ask(Await("a", 9))
    assert bank.call(kind("b" * 2_000_000)) is ErrorCode.unknown_server_error
    assert (bank.runtime.machine(0) is not before, waiting.resolved) == (is_rebuilt, is_rebuilt)
    assert bank.balances() == {"a": 5}


def test_an_answer_waits_for_the_high_watermark(bank: Bank) -> None:
    bank.logs[0].held_back = 0
    answer = bank.ask(Deposit("a", 5))
    bank.world.settle()
    assert (answer.resolved, bank.logs[0].log_end_offset) == (False, 1)
    bank.logs[0].held_back = 1
    bank.runtime.on_high_watermark(0)
    assert answer.value == 5


def test_the_partition_of_a_key_is_known_once_the_topic_is(bank: Bank) -> None:
    assert {bank.runtime.partition_of(key) for key in "abcdef"} == {0, 1}
    bank.runtime.partition_count = None
    assert bank.runtime.partition_of("a") == -1
    assert bank.call(Total(), index=7) is ErrorCode.not_coordinator


def test_an_append_that_fails_leaves_no_trace(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is built from its log again; who waited in it gets an answer."""
    bank.call(Deposit("a", 5))
    before, waiting = bank.runtime.machine(0), bank.ask(Await("a", 9))

    def full(*args: Any) -> Any:
        raise KafkaError(ErrorCode.kafka_storage_error, "full")

    with monkeypatch.context() as patch:
        patch.setattr(WorldLog, "append", full)
        assert bank.call(Deposit("a", 2)) is ErrorCode.not_coordinator
    assert waiting.value is ErrorCode.not_coordinator
    assert bank.runtime.machine(0) is not before
    assert bank.call(Deposit("a", 1)) == 6


@pytest.mark.parametrize("request_", [Deposit("a", 1), Open("a"), Total()])
def test_a_machine_that_fails_is_rebuilt_whatever_it_was_asked(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    bank.call(Deposit("a", 5))
    before, waiting = bank.runtime.machine(0), bank.ask(Await("a", 9))

    def failing(*args: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "handle", failing)
        assert bank.call(request_) is ErrorCode.unknown_server_error
    assert bank.runtime.machine(0) is not before
    assert waiting.value is ErrorCode.not_coordinator
    assert bank.balances() == {"a": 5}


def test_a_machine_that_fails_at_a_notice_is_rebuilt(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.call(Deposit("a", 5))
    before = bank.runtime.machine(0)

    def failing(*args: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "on_notice", failing)
        bank.runtime.on_notice(Limit(3))
    assert bank.runtime.machine(0) is not before
    assert bank.call(Deposit("a", 1)) == 6


def test_a_restart_finds_what_was_answered(bank: Bank) -> None:
    for number in range(600):
        bank.ask(Deposit(f"account {number % 7}", 1))
    bank.world.settle()
    balances = dict(bank.balances())
    assert sum(balances.values()) == 600
    bank.start()
    assert bank.balances() == balances
    assert bank.runtime.skipped_records == 0


def test_a_record_that_cannot_be_read_is_skipped_and_counted(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.call(Deposit("a", 5))
    bank.call(Deposit("b", 6))
    replay = Ledger.replay

    def choking(ledger: Ledger, offset: int, record: SimpleRecord) -> None:
        if record.key == b"a":
            raise ZeroDivisionError
        replay(ledger, offset, record)

    monkeypatch.setattr(Ledger, "replay", choking)
    bank.start()
    assert (bank.balances(), bank.runtime.skipped_records) == ({"b": 6}, 1)


# --- who waits --------------------------------------------------------------------------------------------------


def test_who_waits_is_answered_by_the_request_of_another(bank: Bank) -> None:
    waiting = bank.ask(Await("a", 7))
    bank.call(Deposit("a", 5))
    assert not waiting.resolved
    bank.call(Deposit("a", 2))
    assert waiting.value == 7
    bank.world.advance(2 * WAIT_MS)  # its timer is gone


@pytest.mark.parametrize("jump_ms", [0, 3_600_000])
def test_who_waits_too_long_gets_an_answer_whatever_the_calendar_says(bank: Bank, jump_ms: int) -> None:
    waiting = bank.ask(Await("a", 7))
    bank.world.jumped_ms = jump_ms
    bank.world.advance(WAIT_MS - 1)
    assert not waiting.resolved
    bank.world.advance(1)
    assert waiting.value is ErrorCode.request_timed_out


def test_who_waits_gets_an_answer_when_the_shard_is_led_elsewhere(bank: Bank) -> None:
    waiting = bank.ask(Await("a", 7))
    bank.runtime.unload(0)
    assert waiting.value is ErrorCode.not_coordinator


# --- steps ------------------------------------------------------------------------------------------------------


def test_steps_are_alone_in_their_shard_and_let_others_work(bank: Bank) -> None:
    for number in range(50):
        bank.call(Deposit(f"account {number}", 1))
    total, behind, elsewhere = bank.ask(Total()), bank.ask(Deposit("account 0", 10)), bank.ask(Deposit("b", 3), 1)
    while not elsewhere.resolved:
        bank.world.step()
    assert (total.resolved, behind.resolved) == (False, False)
    bank.world.settle()
    assert (total.value, behind.value) == (50, 11)


def test_work_aside_keeps_no_request_waiting(bank: Bank) -> None:
    for number in range(50):
        bank.call(Deposit(f"account {number}", 1))
    total, behind = bank.ask(Total(aside=True)), bank.ask(Deposit("account 0", 10))
    while not behind.resolved:
        bank.world.step()
    assert not total.resolved
    bank.world.settle()
    assert total.value == 50


# --- the world outside ------------------------------------------------------------------------------------------


def test_an_event_is_written_and_a_notice_is_not(bank: Bank) -> None:
    bank.call(Deposit("a", 5))
    bank.runtime.on_event(Closed("a"))
    bank.world.settle()
    assert (bank.balances(), bank.logs[0].log_end_offset) == ({}, 2)
    bank.runtime.on_notice(Limit(3))
    assert bank.call(Deposit("a", 4)) is ErrorCode.policy_violation
    bank.start()
    assert bank.balances() == {}
    assert bank.call(Deposit("a", 4)) == 4


def test_what_was_missed_is_written_after_a_load_and_later_after_a_rebuild(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once it might be written, fail, and rebuild the machine, for ever."""
    bank.call(Deposit("a", 5))
    bank.call(Deposit("b", 6))
    bank.closed.add("a")
    bank.start()
    assert bank.balances() == {"b": 6}
    bank.closed.add("b")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "handle", None)
        bank.call(Deposit("c", 1))
    assert bank.balances() == {"b": 6}
    bank.world.advance(10_000)
    assert bank.balances() == {}
    assert bank.world.now_ms == START_MS + 10_000


# --- the room ---------------------------------------------------------------------------------------------------


def imports_of(path: Path) -> set[str]:
    """Rooms of odradek that a module imports, type checking included."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("odradek.")}


def names_in(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


@cache
def classes_of(room: str) -> set[str]:
    return {
        node.name
        for path in (SOURCE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize("path", ROOM, ids=lambda path: path.stem)
def test_the_room_knows_no_tenant_and_no_broker(path: Path) -> None:
    assert imports_of(path) <= {"storage", "batches", "core", "coordinator"}
    assert names_in(path) & classes_of("groups") == set()
    assert "__consumer_offsets" not in path.read_text()


def test_the_rules_of_the_room_bite() -> None:
    assert len(ROOM) >= 8
    tenant = SOURCE / "broker" / "group_runtime.py"
    assert "groups" in imports_of(tenant)
    assert {"GroupShard", "TopicsDeleted"} <= names_in(tenant) & classes_of("groups")
