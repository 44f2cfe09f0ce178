"""Subscriptions by pattern: limits of memory and work for regular expressions, and their resolution."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import re2
from counters import bytes_kept
from support.consumer_harness import ConsumerHarness
from support.peers import Peer, serving, until

from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.kip848 import regex
from odradek.wire.api_keys import CONSUMER_GROUP_HEARTBEAT

NAMES = ["a" * 249, "ab" * 100, "b", "topic-1"]

SMALL = {
    "groups, nested": "(" * 900 + "a" + ")" * 900,
    "groups with names": "".join(f"(?<a{number}>x*)" for number in range(800)),
    "repetitions, nested": "(?:" * 900 + "a" + ")*" * 900,
    "copies of a dot": ".{0,990}",
    "copies of copies": "(?:a{0,30}){0,30}",
    "states of every length": "(?:a|b)*a.{0,900}",
    "states of many lengths": "(?:.*a.{0,90}|){9}",
    "any number of anything": ".*a" * 800,
    "Unicode classes": r"\pL\PN[^\pL]" * 3,
    "alternatives": "|".join(f"topic-{number}" for number in range(700)),
    "both cases": "(?i)" + "k" * 2400,
    "quoted": r"\Q" + "((((" * 2000 + r"\E",
    "a class of brackets": "[" + r"\[" * 100 + "]",
    "characters by number": r"\x{1000}|\x{61}" * 100,
}
TOO_LARGE = {
    "long": "a" * 10_001,
    "copies": "(?:a{100}){101}",
    "copies of a Unicode class": r"\pL{11}",
    "many Unicode classes": r"\pL" * 11,
    "Unicode classes in a class": "[" + r"\pL" * 11 + "]",
    "copies of dots": ".{999}" * 2,
    "optional copies": "(?:.?){999}",
    "copies of many names": "(?:" + "|".join(f"topic-{number}" for number in range(90)) + "){20}",
    "letters of both cases": "(?i)" + "k" * 2600,
    "quoted": r"\Q" + "(" * 10_000,
    "brackets that are never closed": "[" * 10_001,
}
TOO_DEEP = {
    "groups": "(" * 1000 + "a" + ")" * 1000,
    "groups without end": "(" * 5000,
    "groups with names": "".join(f"(?<a{number}>" for number in range(1000)) + "a" + ")" * 1000,
}


def fault_of(pattern: str) -> str:
    try:
        regex.check_pattern(pattern)
    except KafkaError as error:
        return error.message.rpartition("regular expression: ")[2]
    return ""


@pytest.mark.parametrize("name", SMALL)
def test_accepted_patterns_have_a_small_program_and_no_captures(name: str) -> None:
    assert fault_of(SMALL[name]) == ""
    compiled = regex.compile_pattern(SMALL[name])[0]
    assert compiled.programsize <= 1.2 * regex.MAX_SIZE
    assert compiled.groups == 0
    found = result_of(regex.resolve_in_steps([SMALL[name]], NAMES))
    plain = re2.compile(SMALL[name])
    expected = frozenset(topic for topic in NAMES if plain.fullmatch(topic)) if name != "groups with names" else None
    assert expected is None or found[SMALL[name]] == expected


@pytest.mark.parametrize("name", TOO_LARGE)
def test_patterns_that_are_too_large_are_refused_before_re2(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(re2, "compile", lambda *_: pytest.fail("RE2 has seen it"))
    assert fault_of(TOO_LARGE[name]) == "expression too large."


@pytest.mark.parametrize("name", TOO_DEEP)
def test_patterns_that_are_too_deep_are_refused_before_re2(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(re2, "compile", lambda *_: pytest.fail("RE2 has seen it"))
    assert fault_of(TOO_DEEP[name]) == "expression nests too deeply."


def test_the_error_quotes_the_beginning_of_a_long_pattern() -> None:
    with pytest.raises(KafkaError) as refusal:
        regex.check_pattern("a" * 30_000)
    assert len(refusal.value.message) < 300


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"(?<a>x)(?<a>y)", "duplicate capture group name."),
        (r"(?P<ü>x)", "invalid named capture."),
        (r"(?<a>x", "missing closing )."),
        (r"(a", "missing closing )."),
        (r"a)", "regexp/syntax: internal error."),
        (r"[a", "missing closing ]."),
        (r"\C", "invalid escape sequence."),
        (r"(?<a>\C)", "invalid escape sequence."),
        ("a**", "invalid nested repetition operator."),
        ("a{1001}", "invalid repeat count."),
        ("(?:a{40}){40}", "invalid repeat count."),
    ],
)
def test_errors_have_the_messages_of_re2j(pattern: str, fault: str) -> None:
    assert fault_of(pattern) == fault


def test_named_groups_match() -> None:
    pattern = r"(?P<kind>topic|other)-(?<number>\d+)[(?<x>]?\Q(?<y>\E?"
    compiled = regex.compile_pattern(pattern)[0]
    assert compiled.groups == 0
    assert [
        bool(compiled.fullmatch(text)) for text in ("topic-12", "other-1(", "topic-1?(?<y", "topic-1?(?<y>", "x-1")
    ] == [
        bool(re2.fullmatch(pattern, text)) for text in ("topic-12", "other-1(", "topic-1?(?<y", "topic-1?(?<y>", "x-1")
    ]


# --- memory -----------------------------------------------------------------------------------------------------

_ATTACK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from odradek.core.errors import KafkaError
from odradek.groups.kip848 import regex
regex.compile_pattern("a")
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = used()
for pattern in {patterns!r}:
    try:
        regex.check_pattern(pattern)
        if hasattr(regex, "resolve"):
            regex.resolve([pattern], {names!r})
        else:
            for _ in regex.resolve_in_steps([pattern], {names!r}):
                pass
    except KafkaError:
        pass
print(used() - before)
"""


@pytest.mark.parametrize(
    "patterns",
    [
        ["(" * depth + "a" + ")" * depth for depth in (900, 2000, 10_000)],
        ["".join(f"(?<a{number}>x*)" for number in range(count)) for count in (800, 3000)],
        [r"\pL" * 2000, r"\pL{999}" * 100, ("(?:a|b)*a" + ".{0,999}") * 100],
        [*SMALL.values(), *TOO_LARGE.values()],
    ],
    ids=["nested groups", "groups with names", "copies of classes", "all"],
)
def test_patterns_use_less_than_24_megabytes(patterns: list[str]) -> None:
    """The patterns run in a separate process with a memory limit, because RE2 allocates memory outside Python's
    heap."""
    code = _ATTACK.format(patterns=patterns, names=NAMES)
    child = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr[-500:]
    assert int(child.stdout) < 24 << 10, "kilobytes"


def test_the_number_of_cached_patterns_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_it = re2.compile

    def count(pattern: str, options: Any) -> Any:
        compiled.append(pattern)
        return compile_it(pattern, options)

    monkeypatch.setattr(re2, "compile", count)
    for _ in range(5):
        regex.check_pattern("once-.*")
        result_of(regex.resolve_in_steps(["once-.*"], NAMES))
    assert compiled == ["once-.*"]
    for number in range(200):
        regex.check_pattern(f"topic-{number}-.*")
    usual = regex.MAX_CACHED_MEMORY // regex.SMALL_MEMORY
    assert len(regex.compiled_patterns) == usual >= 100, "a group may have a hundred patterns"
    for number in range(30):
        regex.check_pattern("x" * 1000 + f"{number}")
    assert sum(kept.options.max_mem for kept in regex.compiled_patterns.values()) <= regex.MAX_CACHED_MEMORY
    assert len(regex.compiled_patterns) == regex.MAX_CACHED_MEMORY // regex.MAX_MEMORY
    assert re2._Regexp._make.cache_info().currsize == 0, "RE2's own cache would keep 128 patterns"


# --- resolution -------------------------------------------------------------------------------------------------


def _harness(topics: int) -> ConsumerHarness:
    harness = ConsumerHarness(partition_count=1)
    for number in range(topics):
        harness.catalog.add(f"topic-{number:05}", 1)
    return harness


def _joined(harness: ConsumerHarness, member: str, pattern: str, group: str = "g") -> Any:
    return harness.beat(group, member, 0, pattern=pattern, owned={}, rebalance_ms=60_000)


def _heartbeat(harness: ConsumerHarness, member: str, pattern: str) -> Any:
    """Sends the heartbeat of a member that joins. None of its steps has run yet."""
    message = {
        "group_id": "g", "member_id": member, "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 60_000, "subscribed_topic_names": None, "subscribed_topic_regex": pattern,
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    return harness.submit(68, 1, message)


def _tick(harness: ConsumerHarness) -> bool:
    """Runs one callback that is due, if there is any."""
    return harness.world.step()


class CountedPattern:
    """A compiled pattern that counts the names which it is compared with."""

    programsize = 12

    def __init__(self, pattern: str, matches: Counter[str]) -> None:
        self._pattern, self._matches = pattern, matches
        self._inner = regex.compile_pattern(pattern)[0]
        self.options = self._inner.options

    def fullmatch(self, name: str) -> Any:
        self._matches[self._pattern] += 1
        return self._inner.fullmatch(name)


@contextmanager
def counted_matches(*patterns: str) -> Iterator[Counter[str]]:
    """Puts counted patterns into the cache of compiled patterns. Yields the number of matches of each pattern."""
    matches = Counter[str]()
    for pattern in patterns:
        regex.compiled_patterns[pattern] = CountedPattern(pattern, matches)
    try:
        yield matches
    finally:
        regex.compiled_patterns.clear()  # no later test finds one of them
        regex.compiled_patterns.memory = 0


def test_many_topics_are_matched_a_few_at_a_time() -> None:
    harness = _harness(3000)
    with counted_matches("topic-0.*") as counted:
        pending = _heartbeat(harness, "m", "topic-0.*")
        matches = [counted.total()]
        while _tick(harness):
            matches.append(counted.total() - sum(matches))
    assert pending.reply.error_code == 0
    assert len(harness.shard("g").consumer_groups["g"].patterns["topic-0.*"].topics) == 3000
    assert sum(matches) == 3000
    assert max(matches) <= regex.STEP_MATCHES


def test_a_group_of_many_topics_and_patterns_is_resolved_completely() -> None:
    harness = _harness(2000)
    epochs: dict[str, int] = {}
    for number in range(4):
        epochs[f"m{number}"] = _joined(harness, f"m{number}", f"topic-0{number}.*").epoch
        for _ in range(3):
            harness.advance(4_000)
            for member, epoch in epochs.items():
                epochs[member] = harness.beat("g", member, epoch, owned={}).epoch
    group = harness.shard("g").consumer_groups["g"]
    assert {pattern: len(resolved.topics) for pattern, resolved in group.patterns.items()} == {
        "topic-00.*": 1000,
        "topic-01.*": 1000,
        "topic-02.*": 0,
        "topic-03.*": 0,
    }


def test_only_new_and_outdated_patterns_are_resolved() -> None:
    harness = _harness(5)
    for number in range(98):
        assert _joined(harness, f"m{number}", f"(?:topic|none)-0000{number}").error is ErrorCode.none
    harness.advance(11_000)
    _joined(harness, "m98", "(?:topic|none)-000098")
    harness.advance(11_000)
    group = harness.shard("g").consumer_groups["g"]
    assert len(group.patterns) == 99
    with counted_matches(*group.patterns, "topic-0000[12]") as matches:
        assert _joined(harness, "new", "topic-0000[12]").error is ErrorCode.none
        harness.advance(1)
        assert matches == {"topic-0000[12]": 5}, "each name once"
        assert group.patterns["topic-0000[12]"].topics == {"topic-00001", "topic-00002"}
        # A new topic may match any pattern.
        matches.clear()
        harness.advance(11_000)
        harness.catalog.add("topic-000055", 1)
        harness.change_topics("topic-000055", created=True)
        harness.beat("g", "new", group.members["new"].epoch, owned={})
        harness.advance(1)
        assert len(matches) == 100
        assert set(matches.values()) == {6}
    assert group.patterns["(?:topic|none)-000055"].topics == {"topic-000055"}


def test_a_member_with_a_new_pattern_causes_one_resolution(tmp_path: Path) -> None:
    """On the wire: 11 ms of a broker's loop in a group of 100 patterns, when all of them were resolved again."""

    async def scenario(matches: Counter[str]) -> None:
        async with serving(tmp_path) as broker:
            peer = Peer(broker)

            async def join(number: int) -> None:
                await peer.ask(CONSUMER_GROUP_HEARTBEAT, 1, first_heartbeat(f"member-{number}", f"t|none-{number}"))
                await until(lambda: not broker.scheduler.busy)

            for number in range(40):
                await join(number)
            broker.clock.advance(11_000)
            await join(40)
            groups = broker.groups.shard(0).consumer_groups
            await until(lambda: "t|none-40" in groups["g"].patterns)
            broker.clock.advance(11_000)
            matches.clear()
            await join(41)
            await until(lambda: "t|none-41" in groups["g"].patterns)
            assert set(matches) == {"t|none-41"}

    with counted_matches(*(f"t|none-{number}" for number in range(42))) as matches:
        asyncio.run(scenario(matches))


def first_heartbeat(member: str, pattern: str) -> dict[str, Any]:
    return {
        "group_id": "g", "member_id": member, "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 60_000, "subscribed_topic_names": None, "subscribed_topic_regex": pattern,
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip


def test_a_pattern_whose_members_left_during_its_resolution_is_not_written() -> None:
    harness = _harness(2000)
    _joined(harness, "stays", "topic-00.*")
    harness.advance(20_000)
    pending = _heartbeat(harness, "leaves", "topic-.*")
    while not any(step.__qualname__.startswith("Runtime._run") for step in harness.world.due()):
        _tick(harness)
    for _ in range(5):
        _tick(harness)
    harness.beat("g", "leaves", -1)
    assert pending.reply.error_code == 0
    assert set(harness.shard("g").consumer_groups["g"].patterns) == {"topic-00.*"}
    assert not harness.shard("g").consumers.patterns.due


def test_a_pattern_with_too_many_topics_for_a_record_matches_none() -> None:
    harness = _harness(2000)
    shard = harness.shard("g")
    harness.partitions[0].max_message_bytes = 5000
    _joined(harness, "m", "topic-.*")
    harness.advance(20_000)
    assert harness.shard("g") is shard, "the shard was not rebuilt"
    assert {pattern: len(known.topics) for pattern, known in shard.consumer_groups["g"].patterns.items()} == {
        "topic-.*": 0
    }


def test_the_number_of_patterns_of_a_group_is_limited() -> None:
    harness = _harness(3)
    for number in range(100):
        assert _joined(harness, f"m{number}", f"topic-{number}").error is ErrorCode.none
    refused = _joined(harness, "one more", "another")
    assert refused.error is ErrorCode.group_max_size_reached
    assert refused.text is not None
    assert "100 regular expressions" in refused.text
    assert _joined(harness, "same", "topic-7").error is ErrorCode.none
    assert _joined(harness, "other", "another", group="h").error is ErrorCode.none


def test_refused_patterns_are_not_cached() -> None:
    harness = _harness(3)

    def attack() -> None:
        for number in range(60):
            assert (
                _joined(harness, f"m{number}", "(" * 2000 + f"{number}").error is ErrorCode.invalid_regular_expression
            )

    _joined(harness, "m", "(")
    assert bytes_kept(attack) < 1 << 20
