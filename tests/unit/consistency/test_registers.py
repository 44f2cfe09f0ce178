"""Linearizability of registers: the search agrees with one that tries every order, and it is fast."""

from __future__ import annotations

import heapq
import random
import time
from dataclasses import replace
from itertools import combinations
from math import inf

import pytest

from odradek.consistency.registers import RegisterOperation, _Search, first_contradiction, smallest_contradiction
from odradek.consistency.value_zones import have_order

HISTORIES = 4_000


def is_linearizable(operations: list[RegisterOperation]) -> bool:
    """Tries all orders. A write may come before its start if another write follows at once: it is never visible."""
    ended = frozenset(index for index, one in enumerate(operations) if one.end < inf)
    seen: set[tuple[frozenset[int], int | None, bool]] = set()

    def follow(done: frozenset[int], value: int | None, is_unseen: bool) -> bool:
        if ended <= done and not is_unseen:
            return True
        if (done, value, is_unseen) in seen:
            return False
        seen.add((done, value, is_unseen))
        left = [index for index in range(len(operations)) if index not in done]
        first_end = min((operations[index].end for index in left), default=-inf)
        for index in left:
            one = operations[index]
            if one.earliest > first_end or not (one.is_write or (one.value == value and not is_unseen)):
                continue
            if one.start <= first_end and follow(done | {index}, one.value, False):
                return True
            if one.is_write and follow(done | {index}, one.value, True):
                return True
        return False

    return follow(frozenset(), None, False)


def small_history(dice: random.Random) -> list[RegisterOperation]:
    span, values, longest = dice.choice([4, 8, 15]), dice.choice([2, 3, 5]), dice.choice([2, 6, 12])
    found = []
    for number in range(dice.randint(2, 9)):
        is_write = dice.random() < 0.5
        start = dice.randint(0, span)
        end = inf if is_write and dice.random() < 0.25 else start + dice.randint(0, longest)
        found.append(
            RegisterOperation(is_write, dice.randint(0, values) or (0 if is_write else None), start, end, number)
        )
    return found


def with_unseen_writes(operations: list[RegisterOperation], dice: random.Random) -> list[RegisterOperation]:
    """Some writes may be replaced before they are visible, as the offsets of a transaction before its end."""
    return [
        replace(one, unseen_from=one.start - dice.randint(0, 8)) if one.is_write and dice.random() < 0.5 else one
        for one in operations
    ]


@pytest.mark.parametrize("has_unseen", [False, True])
def test_the_search_agrees_with_one_that_tries_every_order(has_unseen: bool) -> None:
    results = []
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        operations = small_history(dice)
        if has_unseen:
            operations = with_unseen_writes(operations, dice)
        found = first_contradiction(operations) is None
        assert found is is_linearizable(operations), (seed, operations)
        results.append(found)
    assert HISTORIES * 0.1 < sum(results) < HISTORIES * 0.9, "both answers have to be frequent"


@pytest.mark.parametrize("has_unseen", [False, True])
def test_zones_agree_with_all_orders(has_unseen: bool) -> None:
    """Histories in which no two writes have one value; a write that no read has may have any."""
    results = []
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        operations = [
            replace(one, value=number + 1) if one.is_write else one for number, one in enumerate(small_history(dice))
        ]
        operations = [
            one
            if one.is_write
            else replace(one, value=dice.choice([None, *(o.value for o in operations if o.is_write)]))
            for one in operations
        ]
        if has_unseen:
            operations = with_unseen_writes(operations, dice)
        found = have_order(operations, None)
        assert found is is_linearizable(operations), (seed, operations)
        results.append(found)
    assert HISTORIES * 0.1 < sum(results) < HISTORIES * 0.9, "both answers have to be frequent"


def test_zones_do_not_decide_if_two_writes_have_a_value_that_is_read() -> None:
    write, read = RegisterOperation(True, 1, 0, inf), RegisterOperation(False, 1, 5, 6)
    assert have_order([write, replace(write, start=1), read], None) is None
    assert have_order([write, replace(write, end=2), read], None) is None
    assert have_order([write, replace(write, start=1)], None) is True


def test_a_write_that_is_replaced_before_it_is_visible_is_replaced_by_one_write() -> None:
    """The one that replaces it stands then: what was before does not come back."""
    replaced = RegisterOperation(True, 1, 5, 6, unseen_from=1)
    other = RegisterOperation(True, 2, 3, 4)
    none, new = RegisterOperation(False, None, 7, 8), RegisterOperation(False, 2, 7, 8)
    for open_write in (other, replace(other, end=inf)):
        assert have_order([replaced, open_write, new], None) is True
        assert have_order([replaced, open_write, none], None) is False
        again = replace(open_write, start=3.5)  # two writes have one value: the search decides
        assert first_contradiction([replaced, open_write, again, new]) is None
        assert first_contradiction([replaced, open_write, again, none]) is not None
    assert have_order([replaced, replace(other, start=0, end=0.5), new], None) is False


def test_few_states_prove_only_what_all_states_prove() -> None:
    """A pass with a state for each value finds an order only if there is one, and a contradiction only if it left no
    state out."""
    left_out = 0
    for seed in range(HISTORIES):
        operations = small_history(random.Random(seed))
        search = _Search(operations, None, 1)
        is_right = search.run() is None
        if is_right or search.is_complete:
            assert is_right is is_linearizable(operations), seed
        left_out += not search.is_complete
    assert left_out > 20


def is_proof(part: list[RegisterOperation], operations: list[RegisterOperation]) -> bool:
    """Returns whether a part shows a contradiction whatever else happened: no order fits, and each write that a read
    may have seen is there, or another one that came between them."""
    for read in (one for one in part if not one.is_write):
        between = [one.earliest for one in part if one.is_write and one.end < read.start]
        since = max(between, default=-inf)
        sources = [one for one in operations if one.is_write and one.value == read.value and one.start <= read.end]
        if any(one.end >= since and one not in part for one in sources):
            return False
    return not is_linearizable(part)


def until_the_end_of(last: RegisterOperation, operations: list[RegisterOperation]) -> list[RegisterOperation]:
    """What had happened when an operation ended. A write that goes on may still take effect at any time."""
    return [
        replace(one, end=inf) if one.end > last.end else one
        for one in operations
        if one.start <= last.end and (one.is_write or one.end <= last.end)
    ]


@pytest.mark.parametrize("has_unseen", [False, True])
def test_hardly_a_proof_could_be_shorter(has_unseen: bool) -> None:
    """Compared with all parts of what had happened until the first contradiction, in small histories."""
    excess = []
    for seed in range(250):
        dice = random.Random(seed)
        operations = small_history(dice)
        if has_unseen:
            operations = with_unseen_writes(operations, dice)
        failed = first_contradiction(operations)
        if failed is None:
            continue
        before = until_the_end_of(operations[failed], operations)
        part = smallest_contradiction(operations)
        assert is_proof(part, before), seed
        sizes = range(1, len(part))
        shortest = next(
            (size for size in sizes if any(is_proof(list(some), before) for some in combinations(before, size))),
            len(part),
        )
        excess.append(len(part) - shortest)
    assert len(excess) > 50
    assert max(excess) <= 1
    assert sum(excess) <= len(excess) * 0.02


def true_register(clients: int, unknown: float, count: int, values: int = 1_000) -> list[RegisterOperation]:
    """What clients see of a register that is right. Some writes have no answer."""
    dice = random.Random(clients)
    begins = [(0.0, client) for client in range(clients)]
    effects = []
    while len(effects) < count:
        now, client = heapq.heappop(begins)
        end = now + dice.random()
        is_write = dice.random() < 0.6
        lost = is_write and dice.random() < unknown
        effects.append((dice.uniform(now, end), is_write, now, inf if lost else end))
        heapq.heappush(begins, (end + dice.random() * 0.1, client))
    value: int | None = None
    found = []
    for number, (_, is_write, start, end) in enumerate(sorted(effects)):
        if is_write:
            written = dice.randrange(values)
            value = written if end < inf or dice.random() < 0.5 else value
            found.append(RegisterOperation(True, written, start, end, number))
        else:
            found.append(RegisterOperation(False, value, start, end, number))
    return found


@pytest.mark.parametrize(
    "clients", [1, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_100_000_operations_are_checked_in_seconds(clients: int) -> None:
    operations = true_register(clients, 0.02, 100_000)
    begun = time.process_time()
    assert first_contradiction(operations) is None
    assert time.process_time() - begun < 10 * clients


@pytest.mark.parametrize(("clients", "unknown", "values"), [(20, 0.05, 20), (40, 0.2, 10**9)])
def test_many_clients_with_unknown_outcomes_are_checked_in_seconds(clients: int, unknown: float, values: int) -> None:
    operations = true_register(clients, unknown, 4_000, values)
    begun = time.process_time()
    assert smallest_contradiction(operations) == []
    assert time.process_time() - begun < 15


def test_a_lost_write_of_many_clients_is_proved_in_seconds() -> None:
    operations = true_register(40, 0.2, 4_000, 10**9)
    old = next(one for one in operations if one.is_write and one.end < inf)
    late = max(one.start for one in operations) * 0.9
    operations.append(RegisterOperation(False, old.value, late, late + 0.1, "wrong"))
    begun = time.process_time()
    found = smallest_contradiction(operations)
    assert time.process_time() - begun < 15
    assert (len(found), found[-1].key) == (2, "wrong")


def test_one_wrong_read_of_100_000_operations_is_proved_by_two() -> None:
    operations = true_register(1, 0.0, 100_000)
    wrong = next(one for one in reversed(operations) if not one.is_write)
    operations = [one for one in operations if one is not wrong and one.value is not None]
    operations.append(RegisterOperation(False, 1_001, wrong.start, wrong.end, "wrong"))
    operations.insert(0, RegisterOperation(True, 1_001, -2, -1, "old"))
    write, read = smallest_contradiction(operations)
    assert write.is_write
    assert (read.key, write.end < read.start) == ("wrong", True)
