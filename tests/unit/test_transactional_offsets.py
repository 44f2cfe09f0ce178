"""Offsets of transactions: fencing, pending offsets, commit and abort, races, expiry and deletion, loads."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from support.consumer_rig import Client, settle
from support.transaction_rig import OTHER, PRODUCER, TransactionRig
from support.world import START_MS

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.coordinator.loader import Loader
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity
from odradek.core.records import (
    GroupMetadata,
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from odradek.groups.commit_runs import CommitRuns
from odradek.groups.config import GroupConfig
from odradek.groups.messages import FetchedOffset, FetchedRows
from odradek.groups.offsets import Offsets
from odradek.groups.shard import GroupShard

OK = ErrorCode.none
UNSTABLE = ErrorCode.unstable_offset_commit
DAY_MS = 86_400_000
MANY = 1_200


@pytest.fixture
def rig() -> TransactionRig:
    made = TransactionRig()
    made.catalog.add("t")
    made.catalog.add("u")
    return made


def stable(rig: TransactionRig, topics: dict[str, list[int]]) -> Any:
    return rig.fetched("g", topics)


# --- records ----------------------------------------------------------------------------------------------------


def test_the_records_have_no_topic_id_as_in_kafka(rig: TransactionRig) -> None:
    assert rig.txn_commit("g", "t", {0: 1, 3: 4}, metadata="m", leader_epoch=2) is OK
    log = rig.partition_of("g")
    assert log.records() == [
        OffsetCommitRecord(OffsetKey("g", "t", p), OffsetCommitValue(o, 2, "m", START_MS, -1, None))
        for p, o in {0: 1, 3: 4}.items()
    ]
    ((_, header),) = scan(log.batches[0])
    assert (header.is_transactional, header.producer_id, header.producer_epoch) == (True, *PRODUCER)


def test_too_long_metadata_fails_its_partition_only(rig: TransactionRig) -> None:
    promise = rig.begin_txn_commit("g", "t", {0: 1, 1: 2}, metadata="x" * 4097)
    assert promise.value.refused == {("t", p): ErrorCode.offset_metadata_too_large for p in (0, 1)}
    assert rig.partition_of("g").batches == []


def test_a_commit_of_many_partitions_is_one_batch(rig: TransactionRig) -> None:
    rig.catalog.add("wide", MANY)
    offsets = {partition: 5 * partition for partition in range(MANY)}
    promise = rig.begin_txn_commit("g", "wide", offsets)
    end = rig.end()
    assert promise.value.error is OK
    assert end is OK
    assert rig.fetched("g")["wide"] == offsets
    assert [header.record_count for batch in rig.partition_of("g").batches for _, header in scan(batch)] == [MANY, 1]


def test_a_commit_that_no_batch_can_hold_is_refused_early(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.catalog.add("wide", MANY)
    made: list[int] = []
    add_records = Offsets._add_records
    monkeypatch.setattr(Offsets, "_add_records", lambda self, *how: (made.append(1), add_records(self, *how)))
    shard, rig.partition_of("g").max_message_bytes = rig.shard("g"), 10_000
    assert rig.txn_commit("g", "wide", dict.fromkeys(range(MANY), 1)) is ErrorCode.unknown_server_error
    assert rig.partition_of("g").batches == []
    assert rig.shard("g") is shard
    assert len(made) == 1, "the first part is too large already"


# --- fencing (KIP-447) ------------------------------------------------------------------------------------------


@pytest.mark.behaviour(32, part=True)
def test_a_commit_to_no_group_makes_a_simple_group(rig: TransactionRig) -> None:
    assert rig.txn_commit("g", "t", {0: 1}) is OK
    assert rig.state("g") == "Empty"
    rig.end(commit=False)
    assert rig.state("g") == "Empty", "the group stays until the next expiry check"
    rig.advance(600_000)
    assert rig.state("g") == "Dead"


def test_a_generation_of_no_group_is_illegal(rig: TransactionRig) -> None:
    assert rig.txn_commit("g", "t", {0: 1}, member="m", generation=0) is ErrorCode.illegal_generation
    assert rig.partition_of("g").batches == []


def test_a_member_of_a_classic_group_is_checked(rig: TransactionRig) -> None:
    (member,) = rig.stable("g")
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
        got = rig.txn_commit("g", "t", {0: 1}, member=name, generation=generation, instance=instance)
        assert got is error, (name, generation, instance)


def test_an_earlier_member_of_an_instance_is_fenced(rig: TransactionRig) -> None:
    first = rig.join("g", instance="i").reply
    rig.sync("g", first.member_id, 1, {first.member_id: b""}, instance="i")
    assert rig.txn_commit("g", "t", {0: 1}, member=first.member_id, generation=1, instance="i") is OK
    second = rig.join("g", instance="i").reply.member_id
    assert second != first.member_id
    assert (
        rig.txn_commit("g", "t", {0: 1}, member=first.member_id, generation=1, instance="i")
        is ErrorCode.fenced_instance_id
    )


@pytest.mark.behaviour(32, part=True)
def test_a_rebalancing_classic_group_accepts_a_commit_in_a_transaction(rig: TransactionRig) -> None:
    (member,) = rig.stable("g")
    rig.join("g", rig.member("g"))
    rig.join("g", member)
    assert rig.state("g") == "CompletingRebalance"
    assert rig.commit("g", "t", {0: 2}, member=member, generation=2) == {0: ErrorCode.rebalance_in_progress}
    assert rig.txn_commit("g", "t", {0: 2}, member=member, generation=2) is OK


def test_a_commit_in_a_transaction_renews_no_session(rig: TransactionRig) -> None:
    (member,) = rig.stable("g", session_ms=10_000)
    rig.advance(9_000)
    assert rig.txn_commit("g", "t", {0: 1}, member=member, generation=1) is OK
    rig.advance(1_001)
    assert rig.state("g") == "Empty"


def test_a_member_of_a_kip_848_group_is_checked(rig: TransactionRig) -> None:
    first, second = Client(rig, "g", "a", ("t",)), Client(rig, "g", "b", ("t",))
    settle(rig, first, second)
    owned, epoch = first.owned["t"], first.epoch
    assert epoch == second.epoch
    elsewhere = second.owned["t"][0]
    cases = [
        ("a", epoch, owned[0], None, OK),
        ("a", epoch, elsewhere, None, OK),  # with the present epoch the partitions are not checked
        ("a", epoch + 1, owned[0], None, ErrorCode.illegal_generation),
        ("a", 1, elsewhere, None, ErrorCode.illegal_generation),
        ("a", epoch - 1, owned[0], None, OK),  # it had this partition before
        ("b", epoch - 1, elsewhere, None, ErrorCode.illegal_generation),
        ("c", epoch, owned[0], None, ErrorCode.unknown_member_id),
        ("", -1, owned[0], None, OK),  # KAFKA-18060
        ("", -1, owned[0], "i", ErrorCode.unknown_member_id),
        ("", -2, owned[0], None, ErrorCode.unknown_member_id),
        ("a", -1, elsewhere, None, ErrorCode.illegal_generation),
    ]
    for name, generation, partition, instance, error in cases:
        got = rig.txn_commit("g", "t", {partition: 1}, member=name, generation=generation, instance=instance)
        assert got is error, (name, generation, partition, instance)


def test_an_empty_kip_848_group_accepts_a_commit_without_an_epoch(rig: TransactionRig) -> None:
    rig.enter("g", "m", "t")
    rig.beat("g", "m", -1)
    assert rig.txn_commit("g", "t", {0: 1}, member="x", generation=-1) is OK


# --- pending offsets --------------------------------------------------------------------------------------------


@pytest.mark.behaviour(33)
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_appear_at_commit_and_vanish_at_abort(rig: TransactionRig, commit: bool) -> None:
    rig.commit("g", "t", {0: 1})
    assert rig.txn_commit("g", "t", {0: 10, 1: 11}) is OK
    assert rig.fetched("g", {"t": [0, 1, 2]}, require_stable=False) == {"t": {0: 1, 1: -1, 2: -1}}
    assert stable(rig, {"t": [0, 1, 2]}) == {"t": {0: UNSTABLE, 1: UNSTABLE, 2: -1}}
    rig.end(commit=commit)
    assert stable(rig, {"t": [0, 1, 2]}) == {"t": {0: 10, 1: 11, 2: -1} if commit else {0: 1, 1: -1, 2: -1}}


@pytest.mark.behaviour(27, part="ab")
def test_only_the_partitions_of_open_transactions_are_unstable(rig: TransactionRig) -> None:
    rig.commit("g", "t", {0: 1, 1: 2})
    rig.commit("g", "u", {0: 3})
    rig.commit("h", "t", {0: 4})
    rig.txn_commit("g", "t", {1: 20})
    assert stable(rig, {"t": [0, 1], "u": [0]}) == {"t": {0: 1, 1: UNSTABLE}, "u": {0: 3}}
    assert rig.fetched("h", {"t": [0]}) == {"t": {0: 4}}


@pytest.mark.parametrize("version", [7, 8, 9])
def test_a_fetch_of_all_topics_leaves_out_partitions_that_are_only_pending(rig: TransactionRig, version: int) -> None:
    rig.commit("g", "t", {0: 1, 1: 2})
    rig.txn_commit("g", "t", {1: 20, 2: 30})
    rig.txn_commit("g", "u", {0: 40})
    assert rig.fetched("g", version=version) == {"t": {0: 1, 1: UNSTABLE}}
    assert rig.fetched("g", version=version, require_stable=False) == {"t": {0: 1, 1: 2}}


def test_the_rows_of_a_wide_topic_change_with_a_transaction(rig: TransactionRig) -> None:
    """The rows of a repeated fetch of many partitions are kept until the next commit."""
    rig.catalog.add("wide", 1_000)
    rig.commit("g", "wide", dict.fromkeys(range(1_000), 1))
    asked = {"wide": list(range(1_000))}
    before = dict.fromkeys(range(1_000), 1)
    for _ in range(2):
        assert stable(rig, asked) == {"wide": before}
    rig.txn_commit("g", "wide", {7: 2})
    assert stable(rig, asked) == {"wide": before | {7: UNSTABLE}}
    assert rig.fetched("g", asked, require_stable=False) == {"wide": before}
    assert stable(rig, asked) == {"wide": before | {7: UNSTABLE}}
    rig.end()
    assert rig.fetched("g", asked, require_stable=False) == {"wide": before | {7: 2}}
    assert stable(rig, asked) == {"wide": before | {7: 2}}


@pytest.mark.behaviour(27, part="a")
def test_a_partition_is_unstable_until_its_last_transaction_ends(rig: TransactionRig) -> None:
    rig.txn_commit("g", "t", {0: 1}, PRODUCER)
    rig.txn_commit("g", "t", {0: 2}, OTHER)
    rig.end(PRODUCER)
    assert stable(rig, {"t": [0]}) == {"t": {0: UNSTABLE}}
    assert rig.offset("g", "t", 0) == 1
    rig.end(OTHER)
    assert stable(rig, {"t": [0]}) == {"t": {0: 2}}


def test_a_marker_of_a_producer_without_offsets_changes_nothing(rig: TransactionRig) -> None:
    rig.commit("g", "t", {0: 1})
    rig.txn_commit("g", "t", {0: 2})
    assert rig.end(OTHER) is OK
    assert stable(rig, {"t": [0]}) == {"t": {0: UNSTABLE}}
    assert rig.end() is OK
    assert rig.end() is OK, "a repeated marker"
    assert stable(rig, {"t": [0]}) == {"t": {0: 2}}


def test_a_fenced_producer_commits_nothing(rig: TransactionRig) -> None:
    rig.txn_commit("g", "t", {0: 1}, ProducerIdentity(1000, 3))
    rig.end(ProducerIdentity(1000, 3))
    assert rig.txn_commit("g", "t", {0: 2}, ProducerIdentity(1000, 2)) is ErrorCode.invalid_producer_epoch
    assert stable(rig, {"t": [0]}) == {"t": {0: 1}}


# --- the later record wins --------------------------------------------------------------------------------------


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("restart", [False, True])
def test_a_plain_commit_after_a_transactional_one_wins(rig: TransactionRig, restart: bool) -> None:
    rig.txn_commit("g", "t", {0: 10, 1: 11})
    rig.commit("g", "t", {0: 5})
    assert stable(rig, {"t": [0]}) == {"t": {0: UNSTABLE}}, "the transaction is still open"
    if restart:
        rig.restart()
    rig.end()
    assert stable(rig, {"t": [0, 1]}) == {"t": {0: 5, 1: 11}}


@pytest.mark.behaviour(34)
def test_a_transactional_commit_after_a_plain_one_wins(rig: TransactionRig) -> None:
    rig.txn_commit("g", "t", {0: 10})
    rig.commit("g", "t", {0: 5})
    rig.txn_commit("g", "t", {0: 12})
    rig.end()
    assert stable(rig, {"t": [0]}) == {"t": {0: 12}}


def test_the_later_record_of_two_transactions_wins_and_not_the_later_marker(rig: TransactionRig) -> None:
    rig.txn_commit("g", "t", {0: 10, 1: 10}, PRODUCER)
    rig.txn_commit("g", "t", {0: 20}, OTHER)
    rig.txn_commit("g", "t", {1: 15}, ProducerIdentity(5, 0))
    rig.end(OTHER)
    rig.end(ProducerIdentity(5, 0), commit=False)
    rig.end(PRODUCER)
    assert stable(rig, {"t": [0, 1]}) == {"t": {0: 20, 1: 10}}


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("way", ["block", "long", "load"])
def test_every_way_of_a_plain_commit_overtakes(rig: TransactionRig, way: str) -> None:
    """The block of a commit's repetition, the block of a long commit, and the run of a load."""
    rig.catalog.add("wide", 1_000)
    before = dict.fromkeys(range(600 if way == "long" else 3), 1)
    rig.txn_commit("g", "wide", dict.fromkeys(range(1_000), 9))
    if way == "block":
        from odradek.groups.commit_plan import CommitPlan, PlannedCommits
        from odradek.groups.messages import OffsetCommit, TopicCommit

        plan = CommitPlan(OffsetCommit("g", [TopicCommit("wide", None, [(p, 0, -1, "") for p in before])]))
        rig.runtime.submit(rig.runtime.partition_of("g"), PlannedCommits(plan, list(before.values()), None))
        rig.world.settle()
    else:
        rig.commit("g", "wide", before)
    if way == "load":
        rig.restart()
    rig.end()
    assert rig.fetched("g")["wide"] == dict.fromkeys(range(1_000), 9) | before


# --- deletion and expiry ----------------------------------------------------------------------------------------


def _delete_offsets(rig: TransactionRig, topic: str, *partitions: int) -> list[ErrorCode]:
    rows = [{"partition_index": partition} for partition in partitions]
    reply = rig.call(47, 0, group_id="g", topics=[{"name": topic, "partitions": rows}])
    return [ErrorCode(row.error_code) for row in reply.topics[0].partitions]


@pytest.mark.behaviour(35)
def test_offset_delete_drops_pending_offsets(rig: TransactionRig) -> None:
    rig.commit("g", "t", {0: 1})
    rig.txn_commit("g", "t", {0: 10, 1: 11, 2: 12})
    assert _delete_offsets(rig, "t", 0, 1, 3) == [OK, OK, OK]
    assert stable(rig, {"t": [0, 1, 2]}) == {"t": {0: -1, 1: -1, 2: UNSTABLE}}
    rig.txn_commit("g", "t", {1: 21})
    rig.end()
    assert stable(rig, {"t": [0, 1, 2]}) == {"t": {0: -1, 1: 21, 2: 12}}
    tombstones = [one.key for one in rig.partition_of("g").records() if getattr(one, "value", 0) is None]
    assert tombstones == [OffsetKey("g", "t", 0), OffsetKey("g", "t", 1)], "nothing is deleted for partition 3"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_deleted_group_loses_its_pending_offsets(rig: TransactionRig, kind: str) -> None:
    if kind == "consumer":
        rig.enter("g", "m", "t")
        rig.beat("g", "m", -1)
    rig.commit("g", "t", {0: 1})
    rig.txn_commit("g", "t", {0: 10, 1: 11})
    rig.txn_commit("g", "u", {0: 12}, OTHER)
    (result,) = rig.call(42, 2, groups_names=["g"]).results
    assert result.error_code is OK
    rig.end()
    rig.end(OTHER)
    assert stable(rig, {"t": [0, 1], "u": [0]}) == {"t": {0: -1, 1: -1}, "u": {0: -1}}
    assert rig.state("g") == "Dead"
    rig.restart()
    assert rig.shard("g").durable_state().offsets == {}


@pytest.mark.behaviour(35)
def test_a_deleted_topic_loses_its_pending_offsets(rig: TransactionRig) -> None:
    rig.commit("g", "t", {0: 1})
    rig.txn_commit("g", "t", {0: 10, 1: 11})
    rig.txn_commit("g", "u", {0: 12})
    rig.catalog.remove("t")
    rig.runtime.on_topics_deleted(["t"])
    rig.world.settle()
    assert stable(rig, {"t": [0, 1], "u": [0]}) == {"t": {0: -1, 1: -1}, "u": {0: UNSTABLE}}
    rig.end()
    assert rig.fetched("g") == {"u": {0: 12}}


def test_a_load_drops_the_pending_offsets_of_deleted_topics(rig: TransactionRig) -> None:
    """The broker was killed after the catalogue deleted a topic, and before its tombstones were written."""
    rig.txn_commit("g", "t", {1: 11})
    rig.txn_commit("g", "u", {0: 12})
    rig.catalog.remove("t")
    rig.restart()
    rig.end()
    assert rig.fetched("g") == {"u": {0: 12}}


@pytest.mark.behaviour(19)
def test_an_offset_does_not_expire_while_its_partition_has_a_pending_one(rig: TransactionRig) -> None:
    rig.commit("g", "t", {0: 1, 1: 2})
    rig.advance(6 * DAY_MS)
    rig.txn_commit("g", "t", {0: 10})
    rig.advance(2 * DAY_MS)
    assert rig.fetched("g", {"t": [0, 1]}, require_stable=False) == {"t": {0: 1, 1: -1}}
    assert rig.state("g") == "Empty"
    rig.end(commit=False)
    rig.advance(600_000)
    assert rig.offset("g", "t", 0) == -1
    assert rig.state("g") == "Dead"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_group_with_only_pending_offsets_stays(rig: TransactionRig, kind: str) -> None:
    if kind == "consumer":
        rig.enter("g", "m", "t")
        rig.beat("g", "m", -1)
    rig.commit("g", "u", {0: 1})
    rig.txn_commit("g", "t", {0: 10})
    rig.advance(8 * DAY_MS)
    assert stable(rig, {"t": [0], "u": [0]}) == {"t": {0: UNSTABLE}, "u": {0: -1}}
    rig.end()
    assert rig.offset("g", "t", 0) == 10
    (listed,) = rig.call(16, 5, states_filter=[], types_filter=[]).groups
    assert (listed.group_id, listed.group_type) == ("g", kind)


# --- loads ------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_open_and_ended_transactions(rig: TransactionRig) -> None:
    rig.commit("g", "t", {0: 1})
    rig.txn_commit("g", "t", {0: 10, 1: 11})
    rig.end()
    rig.txn_commit("g", "t", {1: 21}, OTHER)
    rig.end(OTHER, commit=False)
    rig.txn_commit("g", "t", {2: 31})
    rig.commit("g", "u", {0: 7})
    before = rig.shard("g").durable_state()
    rig.restart()
    assert rig.shard("g").durable_state() == before
    assert stable(rig, {"t": [0, 1, 2], "u": [0]}) == {"t": {0: 10, 1: 11, 2: UNSTABLE}, "u": {0: 7}}
    rig.end()
    assert stable(rig, {"t": [2]}) == {"t": {2: 31}}
    assert not rig.shard("g").skipped


def test_other_records_of_a_transactional_batch_take_effect_at_once(rig: TransactionRig) -> None:
    """As in Kafka, where only commits wait for the marker."""
    rig.commit("g", "t", {0: 1, 1: 2})
    records = [
        SimpleRecord(offset_key("g", "t", 0), None),
        SimpleRecord(group_key("h"), group_value(GroupMetadata("consumer", 3, None, None, 7))),
        SimpleRecord(offset_key("g", "t", 1), offset_value(OffsetCommitValue(9, -1, "", START_MS))),
    ]
    batch = encode_batch(
        records, now_ms=START_MS, producer_id=1000, producer_epoch=0, base_sequence=0, transactional=True
    )
    rig.partition_of("g").append(batch)
    rig.restart()
    assert rig.fetched("g", {"t": [0, 1]}, require_stable=False) == {"t": {0: -1, 1: 2}}
    shard = rig.shard("g")
    assert shard.groups["h"].generation == 3
    assert not shard.skipped


def test_an_offset_without_its_group_gets_a_group_at_commit(rig: TransactionRig) -> None:
    """An earlier coordinator may have deleted the group and not its pending offsets."""
    rig.txn_commit("g", "t", {0: 1})
    rig.partition_of("g").put((group_key("g"), None))
    rig.restart()
    rig.end()
    assert rig.state("g") == "Empty"
    rig.advance(8 * DAY_MS)
    assert rig.offset("g", "t", 0) == -1
    assert rig.state("g") == "Dead"


def test_rows_with_an_unstable_partition() -> None:
    rows = FetchedRows([0, 1], [(5, 2, "m", 0), (-1, -1, "")], {1})
    assert list(rows) == [FetchedOffset(0, 5, 2, "m", OK), FetchedOffset(1, -1, -1, "", UNSTABLE)]


def test_a_load_replays_a_tombstone_between_a_transaction_and_a_plain_commit(rig: TransactionRig) -> None:
    """A load in runs replays only the last record of a partition, but the tombstone has dropped a pending offset."""
    rig.txn_commit("g", "t", {0: 10, 1: 11})
    _delete_offsets(rig, "t", 0)
    rig.commit("g", "t", {0: 5})
    assert stable(rig, {"t": [0, 1]}) == {"t": {0: 5, 1: UNSTABLE}}
    rig.restart()
    assert stable(rig, {"t": [0, 1]}) == {"t": {0: 5, 1: UNSTABLE}}


def test_a_partition_of_kafka_is_loaded() -> None:
    """Apache Kafka 4.3 wrote it for confluent-kafka: two committed transactions, an aborted one, a plain commit."""
    data = (Path(__file__).parent.parent / "data" / "kafka-offsets-transactions.log").read_bytes()
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


def test_compaction_keeps_the_outcome_of_transactions(rig: TransactionRig) -> None:
    log = rig.partition_of("g")
    for number in range(3):
        rig.txn_commit("g", "t", {0: 10 + number, 1: 20 + number})
        rig.end(commit=number != 2)
        rig.commit("g", "t", {1: 30 + number})
    log.roll()
    rig.txn_commit("g", "t", {2: 50}, OTHER)
    assert log.compact() > 0
    before = rig.shard("g").durable_state()
    rig.restart()
    assert rig.shard("g").durable_state() == before
    assert rig.fetched("g", {"t": [0, 1, 2]}) == {"t": {0: 11, 1: 32, 2: UNSTABLE}}


def test_pending_offsets_take_no_memory_after_their_end() -> None:
    rig = TransactionRig()
    rig.catalog.add("t")
    for number in range(50):
        producer = ProducerIdentity(number, 0)
        rig.txn_commit(f"g{number}", "t", {0: 1, 1: 2}, producer)
        rig.end(producer, commit=number % 2 == 0, group_id=f"g{number}")
        rig.txn_commit(f"g{number}", "t", {0: 3}, producer)
        rig.call(42, 2, groups_names=[f"g{number}"])
    for index in range(2):
        shard = rig.runtime.shard(index)
        assert shard is not None
        assert shard._offsets.pending.open == {}
        assert shard._offsets.pending.state() == {}
