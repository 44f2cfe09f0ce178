"""The package ``coordinator_runtime/`` without groups: a ledger of accounts on the real runtime and real logs.

The ledger uses all that a coordinator needs: parked requests, timers, steps, background work, events, a rebuild.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.ledger import WAIT_MS, Await, Closed, Deposit, Ledger, Limit, Open, Total
from support.world import START_MS, Process, World
from support.world_log import WorldLog

from odradek.coordinator_runtime.runtime import Runtime
from odradek.core.deferred import Deferred
from odradek.core.effects import Request, Result, ResultSteps, SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError

SOURCE = Path(__file__).resolve().parents[3] / "src" / "odradek"
ROOM = sorted((SOURCE / "coordinator_runtime").glob("*.py"))


class Bank:
    """Two ledgers on logs in memory, and a clock that tests move."""

    def __init__(self, ledger: type[Ledger] = Ledger) -> None:
        self._ledger = ledger
        self.world = World()
        self.process = Process(self.world)
        self.closed: set[str] = set()
        self.logs = [WorldLog(self.world, index, topic="__ledger") for index in range(2)]
        self._begin()

    def start(self) -> None:
        """A new runtime reads the logs, as after kill -9."""
        self.process.kill()
        for log in self.logs:
            log.crash()
        self.process = Process(self.world)
        self._begin()

    def _begin(self) -> None:
        self.runtime = Runtime(
            "__ledger",
            lambda batch_bytes: self._ledger(lambda account: account not in self.closed),
            self.process.environment(),
        )
        self.runtime.partition_count = len(self.logs)
        for log in self.logs:
            self.runtime.load(log.index, log, 0)
        self.world.settle()

    def ask(self, request: Request, index: int = 0) -> Deferred[Any]:
        """Submits a request without ending the tick."""
        return self.runtime.submit(index, request)

    def call(self, request: Request, index: int = 0) -> Any:
        answer = self.ask(request, index)
        self.world.settle()
        return answer.value

    def balances(self, index: int = 0) -> dict[str, int]:
        ledger = self.runtime.shard(index)
        assert ledger is not None
        return ledger.balances


@pytest.fixture
def bank() -> Bank:
    return Bank()


# --- requests and the log ---------------------------------------------------------------------------------------


def test_a_request_is_answered_after_its_record_is_in_the_log(bank: Bank) -> None:
    answer: Deferred[Any] = Deferred()
    before: list[tuple[bool, dict[str, int]]] = []
    bank.logs[0].before_append = lambda: before.append((answer.resolved, dict(bank.balances())))
    bank.runtime.submit_for(0, Deposit("a", 5), answer)
    assert before == [(False, {})]
    assert (answer.value, bank.balances(), bank.logs[0].log_end_offset) == (5, {"a": 5}, 1)


def test_batched_requests_of_a_tick_share_a_batch_and_other_requests_see_their_results(bank: Bank) -> None:
    opened = [bank.ask(Open("a")), bank.ask(Open("b"))]
    assert ([one.resolved for one in opened], bank.balances(), bank.logs[0].log_end_offset) == ([False, False], {}, 0)
    total = bank.ask(Deposit("a", 5))
    assert [one.value for one in (*opened, total)] == [0, 0, 5]
    assert len(bank.logs[0].batches) == 2
    bank.ask(Open("a"))
    bank.world.settle()
    assert bank.balances() == {"a": 0, "b": 0}


@pytest.mark.parametrize("kind", [Open, lambda name: Deposit(name, 1)])
def test_a_request_with_records_too_large_for_a_batch_is_refused(bank: Bank, kind: Callable[[str], Request]) -> None:
    bank.call(Deposit("a", 5))
    before, waiting = bank.runtime.shard(0), bank.ask(Await("a", 9))
    assert bank.call(kind("b" * 2_000_000)) is ErrorCode.unknown_server_error
    assert (bank.runtime.shard(0) is before, waiting.resolved) == (True, False)
    assert bank.balances() == {"a": 5}


def test_a_reply_waits_for_the_high_watermark(bank: Bank) -> None:
    bank.logs[0].held_back = 0
    answer = bank.ask(Deposit("a", 5))
    bank.world.settle()
    assert (answer.resolved, bank.logs[0].log_end_offset) == (False, 1)
    bank.logs[0].held_back = 1
    bank.runtime.on_high_watermark(0)
    assert answer.value == 5


def test_the_partition_of_a_key_is_known_when_the_topic_exists(bank: Bank) -> None:
    assert {bank.runtime.partition_of(key) for key in "abcdef"} == {0, 1}
    bank.runtime.partition_count = None
    assert bank.runtime.partition_of("a") == -1
    assert bank.call(Total(), index=7) is ErrorCode.not_coordinator


def test_a_failed_append_changes_nothing(bank: Bank) -> None:
    """The shard is rebuilt from its log, and a request that waits in the old shard gets an error."""
    bank.call(Deposit("a", 5))
    before, waiting = bank.runtime.shard(0), bank.ask(Await("a", 9))

    bank.logs[0].fail_with = KafkaError(ErrorCode.kafka_storage_error, "full")
    assert bank.call(Deposit("a", 2)) is ErrorCode.not_coordinator
    assert waiting.value is ErrorCode.not_coordinator
    assert bank.runtime.shard(0) is not before
    assert bank.call(Deposit("a", 1)) == 6


class FailingLedger(Ledger):
    """A ledger that raises at each request and each notice while ``is_failing``."""

    is_failing = False

    def handle(self, now_ms: int, request: Request) -> Result | ResultSteps:
        if self.is_failing:
            raise ZeroDivisionError
        return super().handle(now_ms, request)

    def on_notice(self, notice: object) -> None:
        if self.is_failing:
            raise ZeroDivisionError
        super().on_notice(notice)


def failing_ledger(bank: Bank) -> FailingLedger:
    """Lets the first ledger of the bank fail from now on, but not the ledger that replaces it. Returns the ledger."""
    ledger = bank.runtime.shard(0)
    assert isinstance(ledger, FailingLedger)
    ledger.is_failing = True
    return ledger


@pytest.mark.parametrize("request_", [Deposit("a", 1), Open("a"), Total()])
def test_a_shard_that_raises_is_rebuilt_for_every_kind_of_request(request_: Request) -> None:
    bank = Bank(FailingLedger)
    bank.call(Deposit("a", 5))
    waiting = bank.ask(Await("a", 9))
    before = failing_ledger(bank)
    assert bank.call(request_) is ErrorCode.unknown_server_error
    assert bank.runtime.shard(0) is not before
    assert waiting.value is ErrorCode.not_coordinator
    assert bank.balances() == {"a": 5}


def test_a_shard_that_raises_at_a_notice_is_rebuilt() -> None:
    bank = Bank(FailingLedger)
    bank.call(Deposit("a", 5))
    before = failing_ledger(bank)
    bank.runtime.on_notice(Limit(3))
    assert bank.runtime.shard(0) is not before
    assert bank.call(Deposit("a", 1)) == 6


def test_a_restart_keeps_all_answered_changes(bank: Bank) -> None:
    for number in range(600):
        bank.ask(Deposit(f"account {number % 7}", 1))
    bank.world.settle()
    balances = dict(bank.balances())
    assert sum(balances.values()) == 600
    bank.start()
    assert bank.balances() == balances
    assert bank.runtime.skipped_records == 0


def test_a_record_that_cannot_be_read_is_skipped_and_counted() -> None:
    is_choking = False

    class ChokingLedger(Ledger):
        def replay(self, offset: int, record: SimpleRecord) -> None:
            if is_choking and record.key == b"a":
                raise ZeroDivisionError
            super().replay(offset, record)

    bank = Bank(ChokingLedger)
    bank.call(Deposit("a", 5))
    bank.call(Deposit("b", 6))
    is_choking = True
    bank.start()
    assert (bank.balances(), bank.runtime.skipped_records) == ({"b": 6}, 1)


# --- requests that wait -----------------------------------------------------------------------------------------


def test_a_waiting_request_is_answered_by_a_later_request(bank: Bank) -> None:
    waiting = bank.ask(Await("a", 7))
    bank.call(Deposit("a", 5))
    assert not waiting.resolved
    bank.call(Deposit("a", 2))
    assert waiting.value == 7
    bank.world.advance(2 * WAIT_MS)  # the timer of the request was cancelled


@pytest.mark.parametrize("jump_ms", [0, 3_600_000])
def test_a_waiting_request_times_out_also_when_the_system_time_changes(bank: Bank, jump_ms: int) -> None:
    waiting = bank.ask(Await("a", 7))
    bank.world.jumped_ms = jump_ms
    bank.world.advance(WAIT_MS - 1)
    assert not waiting.resolved
    bank.world.advance(1)
    assert waiting.value is ErrorCode.request_timed_out


def test_a_waiting_request_is_answered_when_the_shard_moves(bank: Bank) -> None:
    waiting = bank.ask(Await("a", 7))
    bank.runtime.unload(0)
    assert waiting.value is ErrorCode.not_coordinator


# --- steps ------------------------------------------------------------------------------------------------------


def test_steps_block_their_own_shard_only(bank: Bank) -> None:
    for number in range(50):
        bank.call(Deposit(f"account {number}", 1))
    total, behind, elsewhere = bank.ask(Total()), bank.ask(Deposit("account 0", 10)), bank.ask(Deposit("b", 3), 1)
    while not elsewhere.resolved:
        bank.world.step()
    assert (total.resolved, behind.resolved) == (False, False)
    bank.world.settle()
    assert (total.value, behind.value) == (50, 11)


def test_background_work_delays_no_request(bank: Bank) -> None:
    for number in range(50):
        bank.call(Deposit(f"account {number}", 1))
    total, behind = bank.ask(Total(aside=True)), bank.ask(Deposit("account 0", 10))
    while not behind.resolved:
        bank.world.step()
    assert not total.resolved
    bank.world.settle()
    assert total.value == 50


# --- events and notices -----------------------------------------------------------------------------------------


def test_an_event_writes_a_record_and_a_notice_does_not(bank: Bank) -> None:
    bank.call(Deposit("a", 5))
    bank.runtime.on_event(Closed("a"))
    bank.world.settle()
    assert (bank.balances(), bank.logs[0].log_end_offset) == ({}, 2)
    bank.runtime.on_notice(Limit(3))
    assert bank.call(Deposit("a", 4)) is ErrorCode.policy_violation
    bank.start()
    assert bank.balances() == {}
    assert bank.call(Deposit("a", 4)) == 4


def test_missed_events_are_written_at_once_after_a_load_and_later_after_a_rebuild() -> None:
    """After a rebuild, an immediate write could fail and cause the next rebuild, without end."""
    bank = Bank(FailingLedger)
    bank.call(Deposit("a", 5))
    bank.call(Deposit("b", 6))
    bank.closed.add("a")
    bank.start()
    assert bank.balances() == {"b": 6}
    bank.closed.add("b")
    failing_ledger(bank)
    bank.call(Deposit("c", 1))
    assert bank.balances() == {"b": 6}
    bank.world.advance(10_000)
    assert bank.balances() == {}
    assert bank.world.now_ms == START_MS + 10_000


# --- the package ------------------------------------------------------------------------------------------------


def imports_of(path: Path) -> set[str]:
    """The packages of odradek that a module imports, also for type checking."""
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


@pytest.mark.parametrize("path", [*ROOM, SOURCE / "core" / "effects.py"], ids=lambda path: path.stem)
def test_the_package_imports_no_tenant_and_no_broker(path: Path) -> None:
    assert imports_of(path) <= {"storage", "batches", "core", "coordinator_runtime"}
    assert names_in(path) & classes_of("groups") == set()
    assert "__consumer_offsets" not in path.read_text()
    source = path.read_text().replace("odradek.core.ids", "")
    assert re.findall(r"(?i)\w*(?:group|member|transaction_)\w*", source) == []


def test_violations_of_the_package_rules_are_found() -> None:
    assert len(ROOM) >= 8
    tenant = SOURCE / "broker" / "coordinators" / "group_runtime.py"
    assert "groups" in imports_of(tenant)
    assert {"GroupShard", "TopicsDeleted"} <= names_in(tenant) & classes_of("groups")
