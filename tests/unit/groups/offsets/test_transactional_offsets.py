"""Offsets of transactions: fencing, pending offsets, commit and abort, races, expiry and deletion, loads."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from support.consumer_harness import Client, settle
from support.transaction_harness import OTHER, PRODUCER, TransactionHarness
from support.world import START_MS

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.codecs.offsets_topic import (
    GroupMetadata,
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from odradek.coordinator_runtime.loader import Loader
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity
from odradek.groups.config import GroupConfig
from odradek.groups.messages import FetchedOffset, FetchedRows, OffsetCommit, TopicCommit, TxnOffsetCommit
from odradek.groups.offsets.commit_plan import STEP_PARTITIONS
from odradek.groups.offsets.commit_runs import CommitRuns
from odradek.groups.shard import GroupShard

OK = ErrorCode.none
UNSTABLE = ErrorCode.unstable_offset_commit
DAY_MS = 86_400_000
MANY = 1_200


@pytest.fixture
def harness() -> TransactionHarness:
    made = TransactionHarness()
    made.catalog.add("t")
    made.catalog.add("u")
    return made


def stable(harness: TransactionHarness, topics: dict[str, list[int]]) -> Any:
    return harness.fetched("g", topics)


# --- records ----------------------------------------------------------------------------------------------------


def test_the_records_have_no_topic_id_as_in_kafka(harness: TransactionHarness) -> None:
    assert harness.txn_commit("g", "t", {0: 1, 3: 4}, metadata="m", leader_epoch=2) is OK
    log = harness.partition_of("g")
    assert log.records() == [
        OffsetCommitRecord(OffsetKey("g", "t", p), OffsetCommitValue(o, 2, "m", START_MS, -1, None))
        for p, o in {0: 1, 3: 4}.items()
    ]
    ((_, header),) = scan(log.batches[0])
    assert (header.is_transactional, header.producer_id, header.producer_epoch) == (True, *PRODUCER)


def test_partitions_with_too_long_metadata_are_refused(harness: TransactionHarness) -> None:
    promise = harness.begin_txn_commit("g", "t", {0: 1, 1: 2}, metadata="x" * 4097)
    assert promise.value.refused == {("t", p): ErrorCode.offset_metadata_too_large for p in (0, 1)}
    assert harness.partition_of("g").batches == []


def test_a_commit_of_many_partitions_is_one_batch(harness: TransactionHarness) -> None:
    harness.catalog.add("wide", MANY)
    offsets = {partition: 5 * partition for partition in range(MANY)}
    promise = harness.begin_txn_commit("g", "wide", offsets)
    end = harness.end()
    assert promise.value.error is OK
    assert end is OK
    assert harness.fetched("g")["wide"] == offsets
    assert [header.record_count for batch in harness.partition_of("g").batches for _, header in scan(batch)] == [
        MANY,
        1,
    ]


class CountedRows(list[tuple[int, int, int, str]]):
    """The rows of a commit. ``parts`` counts the parts of them that the shard has taken."""

    parts = 0

    def __getitem__(self, at: Any) -> Any:
        self.parts += isinstance(at, slice)
        return super().__getitem__(at)


def test_a_commit_that_no_batch_can_hold_is_refused_early(harness: TransactionHarness) -> None:
    wide = harness.catalog.add("wide", MANY)
    rows = CountedRows((partition, 1, -1, "") for partition in range(MANY))
    shard, harness.partition_of("g").max_message_bytes = harness.shard("g"), 10_000
    commit = OffsetCommit("g", [TopicCommit("wide", wide.id.bytes, rows)])
    promise = harness.runtime.submit(harness.runtime.partition_of("g"), TxnOffsetCommit(PRODUCER, commit))
    harness.world.settle()
    assert promise.value.error is ErrorCode.unknown_server_error
    assert harness.partition_of("g").batches == []
    assert harness.shard("g") is shard
    assert 0 < rows.parts < MANY // STEP_PARTITIONS, "the first part is too large already"


# --- fencing (KIP-447) ------------------------------------------------------------------------------------------


@pytest.mark.behaviour(32, part=True)
def test_a_commit_to_no_group_makes_a_simple_group(harness: TransactionHarness) -> None:
    assert harness.txn_commit("g", "t", {0: 1}) is OK
    assert harness.state("g") == "Empty"
    harness.end(commit=False)
    assert harness.state("g") == "Empty", "the group stays until the next expiry check"
    harness.advance(600_000)
    assert harness.state("g") == "Dead"


def test_a_refusal_waits_for_the_high_watermark_of_its_group_alone(harness: TransactionHarness) -> None:
    """A refused commit makes no records. It shows the state of its group, which other groups' records do not change."""
    log = harness.partition_of("g")
    log.held_back = log.log_end_offset
    partition_of = harness.runtime.partition_of
    other = next(name for name in map(str, range(99)) if partition_of(name) == partition_of("g"))
    waiting = harness.begin_txn_commit(other, "t", {0: 1})
    refused = harness.begin_txn_commit("g", "t", {0: 1}, member="m", generation=0)
    harness.world.settle()
    assert refused.value.error is ErrorCode.illegal_generation
    assert not waiting.resolved


def test_a_generation_of_no_group_is_illegal(harness: TransactionHarness) -> None:
    assert harness.txn_commit("g", "t", {0: 1}, member="m", generation=0) is ErrorCode.illegal_generation
    assert harness.partition_of("g").batches == []


def test_a_member_of_a_classic_group_is_checked(harness: TransactionHarness) -> None:
    (member,) = harness.stable("g")
    cases = [
        ("other", 1, None, ErrorCode.unknown_member_id),
        (member, 0, None, ErrorCode.illegal_generation),
        (member, 2, None, ErrorCode.illegal_generation),
        (member, -1, None, ErrorCode.illegal_generation),
        ("", 1, None, ErrorCode.unknown_member_id),
        (member, 1, "i", ErrorCode.unknown_member_id),
        (member, 1, None, OK),
        ("", -1, None, OK),  # a producer without a consumer's metadata
    ]
    for name, generation, instance, error in cases:
        got = harness.txn_commit("g", "t", {0: 1}, member=name, generation=generation, instance=instance)
        assert got is error, (name, generation, instance)


def test_an_earlier_member_of_an_instance_is_fenced(harness: TransactionHarness) -> None:
    first = harness.join("g", instance="i").reply
    harness.sync("g", first.member_id, 1, {first.member_id: b""}, instance="i")
    assert harness.txn_commit("g", "t", {0: 1}, member=first.member_id, generation=1, instance="i") is OK
    second = harness.join("g", instance="i").reply.member_id
    assert second != first.member_id
    assert (
        harness.txn_commit("g", "t", {0: 1}, member=first.member_id, generation=1, instance="i")
        is ErrorCode.fenced_instance_id
    )


@pytest.mark.behaviour(32, part=True)
def test_a_rebalancing_classic_group_accepts_a_commit_in_a_transaction(harness: TransactionHarness) -> None:
    (member,) = harness.stable("g")
    harness.join("g", harness.member("g"))
    harness.join("g", member)
    assert harness.state("g") == "CompletingRebalance"
    assert harness.commit("g", "t", {0: 2}, member=member, generation=2) == {0: ErrorCode.rebalance_in_progress}
    assert harness.txn_commit("g", "t", {0: 2}, member=member, generation=2) is OK


def test_a_commit_in_a_transaction_renews_no_session(harness: TransactionHarness) -> None:
    (member,) = harness.stable("g", session_ms=10_000)
    harness.advance(9_000)
    assert harness.txn_commit("g", "t", {0: 1}, member=member, generation=1) is OK
    harness.advance(1_001)
    assert harness.state("g") == "Empty"


def test_a_member_of_a_kip_848_group_is_checked(harness: TransactionHarness) -> None:
    first, second = Client(harness, "g", "a", ("t",)), Client(harness, "g", "b", ("t",))
    settle(harness, first, second)
    owned, epoch = first.owned["t"], first.epoch
    assert epoch == second.epoch
    elsewhere = second.owned["t"][0]
    cases = [
        ("a", epoch, owned[0], None, OK),
        ("a", epoch, elsewhere, None, OK),  # a commit with the current epoch may have any partition
        ("a", epoch + 1, owned[0], None, ErrorCode.illegal_generation),
        ("a", 1, elsewhere, None, ErrorCode.illegal_generation),
        ("a", epoch - 1, owned[0], None, OK),  # the member owned this partition before
        ("b", epoch - 1, elsewhere, None, ErrorCode.illegal_generation),
        ("c", epoch, owned[0], None, ErrorCode.unknown_member_id),
        ("", -1, owned[0], None, OK),  # KAFKA-18060
        ("", -1, owned[0], "i", ErrorCode.unknown_member_id),
        ("", -2, owned[0], None, ErrorCode.unknown_member_id),
        ("a", -1, elsewhere, None, ErrorCode.illegal_generation),
    ]
    for name, generation, partition, instance, error in cases:
        got = harness.txn_commit("g", "t", {partition: 1}, member=name, generation=generation, instance=instance)
        assert got is error, (name, generation, partition, instance)


def test_an_empty_kip_848_group_accepts_a_commit_without_an_epoch(harness: TransactionHarness) -> None:
    harness.enter("g", "m", "t")
    harness.beat("g", "m", -1)
    assert harness.txn_commit("g", "t", {0: 1}, member="x", generation=-1) is OK


# --- pending offsets --------------------------------------------------------------------------------------------


@pytest.mark.behaviour(33)
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_appear_at_commit_and_vanish_at_abort(harness: TransactionHarness, commit: bool) -> None:
    harness.commit("g", "t", {0: 1})
    assert harness.txn_commit("g", "t", {0: 10, 1: 11}) is OK
    assert harness.fetched("g", {"t": [0, 1, 2]}, require_stable=False) == {"t": {0: 1, 1: -1, 2: -1}}
    assert stable(harness, {"t": [0, 1, 2]}) == {"t": {0: UNSTABLE, 1: UNSTABLE, 2: -1}}
    harness.end(commit=commit)
    assert stable(harness, {"t": [0, 1, 2]}) == {"t": {0: 10, 1: 11, 2: -1} if commit else {0: 1, 1: -1, 2: -1}}


@pytest.mark.behaviour(27, part="ab")
def test_only_the_partitions_of_open_transactions_are_unstable(harness: TransactionHarness) -> None:
    harness.commit("g", "t", {0: 1, 1: 2})
    harness.commit("g", "u", {0: 3})
    harness.commit("h", "t", {0: 4})
    harness.txn_commit("g", "t", {1: 20})
    assert stable(harness, {"t": [0, 1], "u": [0]}) == {"t": {0: 1, 1: UNSTABLE}, "u": {0: 3}}
    assert harness.fetched("h", {"t": [0]}) == {"t": {0: 4}}


@pytest.mark.parametrize("version", [7, 8, 9])
def test_a_fetch_of_all_topics_leaves_out_partitions_that_are_only_pending(
    harness: TransactionHarness, version: int
) -> None:
    harness.commit("g", "t", {0: 1, 1: 2})
    harness.txn_commit("g", "t", {1: 20, 2: 30})
    harness.txn_commit("g", "u", {0: 40})
    assert harness.fetched("g", version=version) == {"t": {0: 1, 1: UNSTABLE}}
    assert harness.fetched("g", version=version, require_stable=False) == {"t": {0: 1, 1: 2}}


def test_the_rows_of_a_wide_topic_change_with_a_transaction(harness: TransactionHarness) -> None:
    """The rows of a repeated fetch of many partitions are kept until the next commit."""
    harness.catalog.add("wide", 1_000)
    harness.commit("g", "wide", dict.fromkeys(range(1_000), 1))
    asked = {"wide": list(range(1_000))}
    before = dict.fromkeys(range(1_000), 1)
    for _ in range(2):
        assert stable(harness, asked) == {"wide": before}
    harness.txn_commit("g", "wide", {7: 2})
    assert stable(harness, asked) == {"wide": before | {7: UNSTABLE}}
    assert harness.fetched("g", asked, require_stable=False) == {"wide": before}
    assert stable(harness, asked) == {"wide": before | {7: UNSTABLE}}
    harness.end()
    assert harness.fetched("g", asked, require_stable=False) == {"wide": before | {7: 2}}
    assert stable(harness, asked) == {"wide": before | {7: 2}}


@pytest.mark.behaviour(27, part="a")
def test_a_partition_is_unstable_until_its_last_transaction_ends(harness: TransactionHarness) -> None:
    harness.txn_commit("g", "t", {0: 1}, PRODUCER)
    harness.txn_commit("g", "t", {0: 2}, OTHER)
    harness.end(PRODUCER)
    assert stable(harness, {"t": [0]}) == {"t": {0: UNSTABLE}}
    assert harness.offset("g", "t", 0) == 1
    harness.end(OTHER)
    assert stable(harness, {"t": [0]}) == {"t": {0: 2}}


def test_a_marker_of_a_producer_without_offsets_changes_nothing(harness: TransactionHarness) -> None:
    harness.commit("g", "t", {0: 1})
    harness.txn_commit("g", "t", {0: 2})
    assert harness.end(OTHER) is OK
    assert stable(harness, {"t": [0]}) == {"t": {0: UNSTABLE}}
    assert harness.end() is OK
    assert harness.end() is OK, "a repeated marker"
    assert stable(harness, {"t": [0]}) == {"t": {0: 2}}


def test_a_fenced_producer_commits_nothing(harness: TransactionHarness) -> None:
    harness.txn_commit("g", "t", {0: 1}, ProducerIdentity(1000, 3))
    harness.end(ProducerIdentity(1000, 3))
    assert harness.txn_commit("g", "t", {0: 2}, ProducerIdentity(1000, 2)) is ErrorCode.invalid_producer_epoch
    assert stable(harness, {"t": [0]}) == {"t": {0: 1}}


# --- the later record wins --------------------------------------------------------------------------------------


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("restart", [False, True])
def test_a_plain_commit_after_a_transactional_one_wins(harness: TransactionHarness, restart: bool) -> None:
    harness.txn_commit("g", "t", {0: 10, 1: 11})
    harness.commit("g", "t", {0: 5})
    assert stable(harness, {"t": [0]}) == {"t": {0: UNSTABLE}}, "the transaction is still open"
    if restart:
        harness.restart()
    harness.end()
    assert stable(harness, {"t": [0, 1]}) == {"t": {0: 5, 1: 11}}


@pytest.mark.behaviour(34)
def test_a_transactional_commit_after_a_plain_one_wins(harness: TransactionHarness) -> None:
    harness.txn_commit("g", "t", {0: 10})
    harness.commit("g", "t", {0: 5})
    harness.txn_commit("g", "t", {0: 12})
    harness.end()
    assert stable(harness, {"t": [0]}) == {"t": {0: 12}}


def test_the_later_record_of_two_transactions_wins_and_not_the_later_marker(harness: TransactionHarness) -> None:
    harness.txn_commit("g", "t", {0: 10, 1: 10}, PRODUCER)
    harness.txn_commit("g", "t", {0: 20}, OTHER)
    harness.txn_commit("g", "t", {1: 15}, ProducerIdentity(5, 0))
    harness.end(OTHER)
    harness.end(ProducerIdentity(5, 0), commit=False)
    harness.end(PRODUCER)
    assert stable(harness, {"t": [0, 1]}) == {"t": {0: 20, 1: 10}}


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("way", ["block", "long", "load"])
def test_a_plain_commit_overtakes_as_a_block_and_in_a_load(harness: TransactionHarness, way: str) -> None:
    """A repeated commit and a commit of many partitions are applied as blocks. A load applies commit runs."""
    harness.catalog.add("wide", 1_000)
    before = dict.fromkeys(range(600 if way == "long" else 3), 1)
    harness.txn_commit("g", "wide", dict.fromkeys(range(1_000), 9))
    if way == "block":
        from odradek.groups.messages import OffsetCommit, TopicCommit
        from odradek.groups.offsets.commit_plan import CommitPlan, PlannedCommits

        plan = CommitPlan(OffsetCommit("g", [TopicCommit("wide", None, [(p, 0, -1, "") for p in before])]))
        harness.runtime.submit(harness.runtime.partition_of("g"), PlannedCommits(plan, list(before.values()), None))
        harness.world.settle()
    else:
        harness.commit("g", "wide", before)
    if way == "load":
        harness.restart()
    harness.end()
    assert harness.fetched("g")["wide"] == dict.fromkeys(range(1_000), 9) | before


# --- deletion and expiry ----------------------------------------------------------------------------------------


def _delete_offsets(harness: TransactionHarness, topic: str, *partitions: int) -> list[ErrorCode]:
    rows = [{"partition_index": partition} for partition in partitions]
    reply = harness.call(47, 0, group_id="g", topics=[{"name": topic, "partitions": rows}])
    return [ErrorCode(row.error_code) for row in reply.topics[0].partitions]


@pytest.mark.behaviour(35)
def test_offset_delete_drops_pending_offsets(harness: TransactionHarness) -> None:
    harness.commit("g", "t", {0: 1})
    harness.txn_commit("g", "t", {0: 10, 1: 11, 2: 12})
    assert _delete_offsets(harness, "t", 0, 1, 3) == [OK, OK, OK]
    assert stable(harness, {"t": [0, 1, 2]}) == {"t": {0: -1, 1: -1, 2: UNSTABLE}}
    harness.txn_commit("g", "t", {1: 21})
    harness.end()
    assert stable(harness, {"t": [0, 1, 2]}) == {"t": {0: -1, 1: 21, 2: 12}}
    tombstones = [one.key for one in harness.partition_of("g").records() if getattr(one, "value", 0) is None]
    assert tombstones == [OffsetKey("g", "t", 0), OffsetKey("g", "t", 1)], "nothing is deleted for partition 3"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_deleted_group_loses_its_pending_offsets(harness: TransactionHarness, kind: str) -> None:
    if kind == "consumer":
        harness.enter("g", "m", "t")
        harness.beat("g", "m", -1)
    harness.commit("g", "t", {0: 1})
    harness.txn_commit("g", "t", {0: 10, 1: 11})
    harness.txn_commit("g", "u", {0: 12}, OTHER)
    (result,) = harness.call(42, 2, groups_names=["g"]).results
    assert result.error_code is OK
    harness.end()
    harness.end(OTHER)
    assert stable(harness, {"t": [0, 1], "u": [0]}) == {"t": {0: -1, 1: -1}, "u": {0: -1}}
    assert harness.state("g") == "Dead"
    harness.restart()
    assert harness.shard("g").durable_state().offsets == {}


@pytest.mark.behaviour(35)
def test_a_deleted_topic_loses_its_pending_offsets(harness: TransactionHarness) -> None:
    harness.commit("g", "t", {0: 1})
    harness.txn_commit("g", "t", {0: 10, 1: 11})
    harness.txn_commit("g", "u", {0: 12})
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    assert stable(harness, {"t": [0, 1], "u": [0]}) == {"t": {0: -1, 1: -1}, "u": {0: UNSTABLE}}
    harness.end()
    assert harness.fetched("g") == {"u": {0: 12}}


def test_a_load_drops_the_pending_offsets_of_deleted_topics(harness: TransactionHarness) -> None:
    """The broker was killed after the catalogue deleted a topic, but before the tombstones were written."""
    harness.txn_commit("g", "t", {1: 11})
    harness.txn_commit("g", "u", {0: 12})
    harness.catalog.remove("t")
    harness.restart()
    harness.end()
    assert harness.fetched("g") == {"u": {0: 12}}


@pytest.mark.behaviour(19)
def test_an_offset_does_not_expire_while_its_partition_has_a_pending_one(harness: TransactionHarness) -> None:
    harness.commit("g", "t", {0: 1, 1: 2})
    harness.advance(6 * DAY_MS)
    harness.txn_commit("g", "t", {0: 10})
    harness.advance(2 * DAY_MS)
    assert harness.fetched("g", {"t": [0, 1]}, require_stable=False) == {"t": {0: 1, 1: -1}}
    assert harness.state("g") == "Empty"
    harness.end(commit=False)
    harness.advance(600_000)
    assert harness.offset("g", "t", 0) == -1
    assert harness.state("g") == "Dead"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_group_with_only_pending_offsets_stays(harness: TransactionHarness, kind: str) -> None:
    if kind == "consumer":
        harness.enter("g", "m", "t")
        harness.beat("g", "m", -1)
    harness.commit("g", "u", {0: 1})
    harness.txn_commit("g", "t", {0: 10})
    harness.advance(8 * DAY_MS)
    assert stable(harness, {"t": [0], "u": [0]}) == {"t": {0: UNSTABLE}, "u": {0: -1}}
    harness.end()
    assert harness.offset("g", "t", 0) == 10
    (listed,) = harness.call(16, 5, states_filter=[], types_filter=[]).groups
    assert (listed.group_id, listed.group_type) == ("g", kind)


# --- loads ------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_open_and_ended_transactions(harness: TransactionHarness) -> None:
    harness.commit("g", "t", {0: 1})
    harness.txn_commit("g", "t", {0: 10, 1: 11})
    harness.end()
    harness.txn_commit("g", "t", {1: 21}, OTHER)
    harness.end(OTHER, commit=False)
    harness.txn_commit("g", "t", {2: 31})
    harness.commit("g", "u", {0: 7})
    before = harness.shard("g").durable_state()
    harness.restart()
    assert harness.shard("g").durable_state() == before
    assert stable(harness, {"t": [0, 1, 2], "u": [0]}) == {"t": {0: 10, 1: 11, 2: UNSTABLE}, "u": {0: 7}}
    harness.end()
    assert stable(harness, {"t": [2]}) == {"t": {2: 31}}
    assert not harness.shard("g").skipped


def test_other_records_of_a_transactional_batch_take_effect_at_once(harness: TransactionHarness) -> None:
    """As in Kafka, only offset commits wait for the marker."""
    harness.commit("g", "t", {0: 1, 1: 2})
    records = [
        SimpleRecord(offset_key("g", "t", 0), None),
        SimpleRecord(group_key("h"), group_value(GroupMetadata("consumer", 3, None, None, 7))),
        SimpleRecord(offset_key("g", "t", 1), offset_value(OffsetCommitValue(9, -1, "", START_MS))),
    ]
    batch = encode_batch(
        records, now_ms=START_MS, producer_id=1000, producer_epoch=0, base_sequence=0, transactional=True
    )
    harness.partition_of("g").append(batch)
    harness.restart()
    assert harness.fetched("g", {"t": [0, 1]}, require_stable=False) == {"t": {0: -1, 1: 2}}
    shard = harness.shard("g")
    assert shard.groups["h"].generation == 3
    assert not shard.skipped


def test_an_offset_without_its_group_gets_a_group_at_commit(harness: TransactionHarness) -> None:
    """An earlier coordinator may have deleted the group without its pending offsets."""
    harness.txn_commit("g", "t", {0: 1})
    harness.partition_of("g").put((group_key("g"), None))
    harness.restart()
    harness.end()
    assert harness.state("g") == "Empty"
    harness.advance(8 * DAY_MS)
    assert harness.offset("g", "t", 0) == -1
    assert harness.state("g") == "Dead"


def test_the_row_of_an_unstable_partition_has_its_error() -> None:
    rows = FetchedRows([0, 1], [(5, 2, "m", 0), (-1, -1, "")], {1})
    assert list(rows) == [FetchedOffset(0, 5, 2, "m", OK), FetchedOffset(1, -1, -1, "", UNSTABLE)]


def test_a_load_replays_a_tombstone_between_a_transaction_and_a_plain_commit(harness: TransactionHarness) -> None:
    """In a commit run, a load replays only the last record of each partition. It must also replay a tombstone, because
    the tombstone drops a pending offset."""
    harness.txn_commit("g", "t", {0: 10, 1: 11})
    _delete_offsets(harness, "t", 0)
    harness.commit("g", "t", {0: 5})
    assert stable(harness, {"t": [0, 1]}) == {"t": {0: 5, 1: UNSTABLE}}
    harness.restart()
    assert stable(harness, {"t": [0, 1]}) == {"t": {0: 5, 1: UNSTABLE}}


def test_a_partition_of_kafka_is_loaded() -> None:
    """Apache Kafka 4.3 wrote the log: two committed transactions of confluent-kafka, an aborted one, a plain commit."""
    data = (Path(__file__).parents[3] / "data" / "kafka-offsets-transactions.log").read_bytes()
    shard = GroupShard(GroupConfig())
    loader = Loader(shard, "log", CommitRuns)
    for position, header in scan(data):
        steps = (
            loader.take_marker(data, position, header) if header.is_control else loader.take(data, position, header, 0)
        )
        deque(steps, 0)
    deque(loader.finish(), 0)
    found = [shard.committed("g", "t", partition) for partition in range(4)]
    assert [None if value is None else value.offset for value in found] == [7, 11, 12, 13]
    assert shard.durable_state().pending == {}
    assert not shard.skipped


def test_compaction_keeps_the_outcome_of_transactions(harness: TransactionHarness) -> None:
    log = harness.partition_of("g")
    for number in range(3):
        harness.txn_commit("g", "t", {0: 10 + number, 1: 20 + number})
        harness.end(commit=number != 2)
        harness.commit("g", "t", {1: 30 + number})
    log.roll()
    harness.txn_commit("g", "t", {2: 50}, OTHER)
    assert log.compact() > 0
    before = harness.shard("g").durable_state()
    harness.restart()
    assert harness.shard("g").durable_state() == before
    assert harness.fetched("g", {"t": [0, 1, 2]}) == {"t": {0: 11, 1: 32, 2: UNSTABLE}}


def test_pending_offsets_take_no_memory_after_their_end() -> None:
    harness = TransactionHarness()
    harness.catalog.add("t")
    for number in range(50):
        producer = ProducerIdentity(number, 0)
        harness.txn_commit(f"g{number}", "t", {0: 1, 1: 2}, producer)
        harness.end(producer, commit=number % 2 == 0, group_id=f"g{number}")
        harness.txn_commit(f"g{number}", "t", {0: 3}, producer)
        harness.call(42, 2, groups_names=[f"g{number}"])
    for index in range(2):
        shard = harness.runtime.shard(index)
        assert shard is not None
        assert not shard.has_pending_offsets
        assert shard.durable_state().pending == {}
