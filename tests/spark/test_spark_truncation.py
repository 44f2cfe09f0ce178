"""The Spark source after a truncation by a new leader: it reports data loss, or it reads the remaining records."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.insides import lookups_of
from support.scripted import (
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FOR_LEADER_EPOCH,
    ScriptedCluster,
    fetch_reply,
    scripted,
)

from odradek.batches.encode import encode_batch
from odradek.client.errors import BrokerUnreachable
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.offset_ranges import Piece
from odradek.spark.options import ReadOptions, parse_options
from odradek.spark.piece_reader import read_piece
from odradek.spark.source import OdradekReader, OdradekStreamReader

T0 = TopicPartition("t", 0)
Offset = dict[str, Any]


def batch(first: int, count: int, epoch: int = 0) -> tuple[int, bytes]:
    records = [SimpleRecord(b"k", b"%d" % epoch) for _ in range(count)]
    return first + count - 1, encode_batch(records, now_ms=1, base_offset=first, leader_epoch=epoch)


def options(cluster: ScriptedCluster, streaming: bool = True, **given: str) -> ReadOptions:
    usual = {
        "kafka.bootstrap.servers": cluster.bootstrap, "assign": '{"t":[0]}', "fetchOffset.numRetries": "0",
        "commitOffsets": "false",
    }  # fmt: skip
    return parse_options(usual | given, streaming=streaming)


def read(cluster: ScriptedCluster, leader_epoch: int = -1, **given: str) -> list[int]:
    task = read_piece(options(cluster, **given), Piece(T0, 0, 30, cluster.topic_id, leader_epoch))
    return [offset for one in task for offset in one.column("offset").to_pylist()]


def elect_uncleanly(cluster: ScriptedCluster, kept: int, end: int) -> None:
    """A replica without the records from ``kept`` on becomes leader; its log has grown to ``end`` since."""
    cluster.leader_epoch, cluster.epoch_0_end = 1, kept
    cluster.log = [batch(0, kept), batch(kept, end - kept, epoch=1)]


def epoch_lookups(cluster: ScriptedCluster) -> int:
    return sum(broker.count(OFFSET_FOR_LEADER_EPOCH) for broker in cluster.brokers.values())


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        made.log = [batch(0, 10), batch(10, 20)]
        yield made


class Query:
    """A streaming query as Spark runs it; each source offset goes through JSON."""

    def __init__(self, cluster: ScriptedCluster, **given: str) -> None:
        self.reader = OdradekStreamReader(options(cluster, **{"startingOffsets": "earliest"} | given))

    def next(self, start: Offset, limit: Any = None) -> Offset:
        return dict(json.loads(json.dumps(self.reader.latestOffset(start, limit or ReadAllAvailable()))))

    def read(self, start: Offset, end: Offset) -> list[tuple[int, bytes]]:
        rows: list[tuple[int, bytes]] = []
        for task in self.reader.partitions(start, end):
            for one in self.reader.read(task):
                rows += zip(one.column("offset").to_pylist(), one.column("value").to_pylist(), strict=True)
        return rows


@pytest.mark.claim(57, part=True)
@pytest.mark.behaviour(52, part=True)
@pytest.mark.parametrize("end", [30, 45])
def test_a_truncation_is_noticed_although_the_log_has_grown_again(
    cluster: ScriptedCluster, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log end does not show the truncation: the log is as long as before, or longer."""
    first = Query(cluster).next({})
    assert first["t"] == {"0": 30}
    assert first["$odradek"]["epochs"] == {"t": {"0": 0}}
    elect_uncleanly(cluster, 20, end)
    with pytest.raises(DataLoss) as caught:
        Query(cluster).next(first)
    assert str(caught.value).startswith(
        "data may have been lost: t-0: it was read up to offset 30, but the log of its leader (epoch 1) diverges "
        "at offset 20: the records that were read at offsets 20 to 29 are lost, and the log has other records at "
        f"offsets 20 to {end - 1} (truncation: a replica without the lost records became leader, or its broker's data "
        "was put back from an older copy)"
    )
    lenient = Query(cluster, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        second = lenient.next(first)
    assert "the records that were read at offsets 20 to 29 are lost" in caplog.text
    assert lenient.read(first, second) == [(offset, b"1") for offset in range(20, end)]
    assert lenient.next(second) == second, "reported once"
    assert Query(cluster).next(second) == second, "and no loss after that"


def test_the_end_of_a_micro_batch_within_the_log_is_checked_too(cluster: ScriptedCluster) -> None:
    query = Query(cluster)
    first = query.next({}, ReadMaxRows(25))
    assert first["t"] == {"0": 25}
    elect_uncleanly(cluster, 25, 40)
    second = query.next(first)
    assert query.read(first, second)[0] == (25, b"1"), "no record that was read is lost"
    cluster.leader_epoch, cluster.epoch_0_end = 2, 24
    with pytest.raises(DataLoss, match="the records that were read at offsets 24 to 39 are lost"):
        query.next(second)


def test_a_leader_change_causes_one_epoch_lookup(cluster: ScriptedCluster) -> None:
    query = Query(cluster)
    first = query.next({})
    asked = [query.next(first) for _ in range(3)]
    cluster.log.append(batch(30, 5))
    second = query.next(first)
    assert query.read(first, second) == [(offset, b"0") for offset in range(30, 35)]
    assert epoch_lookups(cluster) == 0
    cluster.leader_epoch, cluster.epoch_0_end = 1, 35
    asked += [query.next(second) for _ in range(3)]
    assert asked == [first] * 3 + [second] * 3
    assert epoch_lookups(cluster) == 1
    cluster.log.append(batch(35, 5, epoch=1))
    third = query.next(second)
    assert third["$odradek"]["epochs"] == {"t": {"0": 1}}
    assert query.next(third) == third
    assert epoch_lookups(cluster) == 1


@pytest.mark.behaviour(52, part=True)
def test_a_recreated_topic_has_its_own_epoch_lookup(cluster: ScriptedCluster) -> None:
    """The epochs of the new topic start at 0, so a cached result for the old topic would match."""
    query = Query(cluster, failOnDataLoss="false")
    elect_uncleanly(cluster, 20, 45)
    old = {"t": {"0": 30}, "$odradek": {"ids": {"t": str(cluster.topic_id)}, "epochs": {"t": {"0": 0}}}}
    assert query.next(old)["$odradek"]["from"] == {"t": {"0": 20}}
    cluster.topic_id, cluster.leader_epoch, cluster.log = UUID(int=8), 0, [batch(0, 30)]
    recreated = query.next(old)
    assert (recreated["t"], recreated["$odradek"]["from"]) == ({"0": 30}, {"t": {"0": 0}})
    cluster.leader_epoch, cluster.epoch_0_end = 1, 30
    cluster.log.append(batch(30, 5, epoch=1))
    assert query.read(recreated, query.next(recreated)) == [(offset, b"1") for offset in range(30, 35)]
    assert epoch_lookups(cluster) == 2


@pytest.mark.behaviour(52, part=True)
def test_the_query_waits_while_a_former_leader_replies(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.leader_epoch = 1
    query = Query(cluster)
    first = query.next({})
    cluster.leader_epoch, cluster.high_watermark = 0, 20
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        assert [query.next(first) for _ in range(2)] == [first, first]
    assert len(caplog.messages) == 1, "logged once"
    message = "t-0: leader epoch 0 of the log end offset is older than the known leader epoch 1: waiting"
    assert message in caplog.text
    cluster.leader_epoch, cluster.high_watermark = 1, None
    cluster.log.append(batch(30, 5, epoch=1))
    assert query.read(first, query.next(first)) == [(offset, b"1") for offset in range(30, 35)]


def test_a_micro_batch_is_planned_with_three_requests(cluster: ScriptedCluster) -> None:
    """One Metadata and two ListOffsets requests: leader epochs add no request."""
    query = Query(cluster)
    first = query.next({})
    cluster.log.append(batch(30, 5))
    broker = cluster.brokers[1]
    before = len(broker.asked)
    second = query.next(first)
    query.reader.partitions(first, second)
    assert [key for key, _, _ in broker.asked[before:]] == [METADATA, LIST_OFFSETS, LIST_OFFSETS]


def test_a_query_continues_from_a_checkpoint_without_epochs(cluster: ScriptedCluster) -> None:
    older = {"t": {"0": 12}, "$odradek": {"ids": {"t": str(cluster.topic_id)}}}
    elect_uncleanly(cluster, 8, 40)
    query = Query(cluster)
    end = query.next(older)
    assert query.read(older, end)[0] == (12, b"1"), "the divergence is unknown"
    assert end["$odradek"]["epochs"] == {"t": {"0": 1}}


@pytest.mark.behaviour(52, part=True)
@pytest.mark.parametrize("code", [None, ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed])
def test_the_query_continues_if_the_epoch_lookup_is_refused(cluster: ScriptedCluster, code: ErrorCode | None) -> None:
    """Neither the driver nor the worker notices the truncation. The micro-batch was planned before the election."""
    query = Query(cluster)
    first = query.next({})
    elect_uncleanly(cluster, 20, 45)
    for broker in cluster.brokers.values():
        if code is None:
            del broker.ranges[OFFSET_FOR_LEADER_EPOCH]
        else:
            row = {"error_code": code.value, "partition": 0, "leader_epoch": -1, "end_offset": -1}
            answer = {"throttle_time": 0, "topics": [{"topic": "t", "partitions": [row]}]}
            broker.answers[OFFSET_FOR_LEADER_EPOCH] = lambda message, version, answer=answer: answer
    assert query.read({}, first) == [(offset, b"%d" % (offset >= 20)) for offset in range(30)]
    assert Query(cluster).next(first)["t"] == {"0": 45}


@pytest.mark.parametrize("fails", [True, False])
def test_a_micro_batch_planned_before_a_truncation_is_read_up_to_the_divergence(
    cluster: ScriptedCluster, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A restarted query reads the planned micro-batch. The next one starts at the divergence offset."""
    query = Query(cluster, failOnDataLoss=str(fails).lower())
    planned = query.next({})
    elect_uncleanly(cluster, 20, 45)
    again = Query(cluster, failOnDataLoss=str(fails).lower())
    if fails:
        with pytest.raises(DataLoss, match=r"t-0: the log of its leader diverges at offset 20 .*offsets 20 to 29 "):
            again.read({}, planned)
        return
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        assert again.read({}, planned) == [(offset, b"0") for offset in range(20)]
    assert "truncation" in caplog.text
    following = again.next(planned)
    assert again.read(planned, following) == [(offset, b"1") for offset in range(20, 45)]


def test_a_batch_read_reports_a_truncation_after_its_plan(cluster: ScriptedCluster) -> None:
    reader = OdradekReader(options(cluster, streaming=False))
    tasks = reader.partitions()
    assert epoch_lookups(cluster) == 0
    elect_uncleanly(cluster, 20, 45)
    with pytest.raises(DataLoss, match="the planned records at offsets 20 to 29 are lost"):
        [list(reader.read(task)) for task in tasks]


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_read_reports_requested_offsets_that_do_not_exist(
    cluster: ScriptedCluster, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    named = {"startingOffsets": '{"t":{"0":0}}', "endingOffsets": '{"t":{"0":40}}'}
    reader = OdradekReader(options(cluster, streaming=False, failOnDataLoss=str(fails).lower(), **named))
    message = "t-0: offset 39 does not exist yet (its log ends at 30)"
    if fails:
        with pytest.raises(DataLoss, match=re.escape(message)):
            reader.partitions()
        return
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        tasks = reader.partitions()
    assert caplog.messages == [f"data may have been lost: {message}. The query continues, because failOnDataLoss=false"]
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 30


@pytest.mark.parametrize("streaming", [True, False])
def test_a_start_at_a_commit_above_a_truncation_is_data_loss(cluster: ScriptedCluster, streaming: bool) -> None:
    """Offset 7 was committed in epoch 2. The leader of epoch 3 has records of epoch 2 only below offset 5."""
    cluster.committed_epoch = 2
    cluster.leader_epoch, cluster.epoch_0_end = 3, 5
    given = {"startingOffsets": "committed", "kafka.group.id": "g"}
    message = "t-0: it was read up to offset 7, but the log of its leader .epoch 3. diverges at offset 5"

    def begin(**more: str) -> int:
        chosen = options(cluster, streaming, **given, **more)
        if not streaming:
            return int(OdradekReader(chosen).partitions()[0].pieces[0].start)
        end = OdradekStreamReader(chosen).latestOffset({}, ReadAllAvailable())
        return int(end["$odradek"]["from"]["t"]["0"])

    with pytest.raises(DataLoss, match=message):
        begin()
    assert begin(failOnDataLoss="false") == 5


@pytest.mark.claim(57, part=True)
def test_a_start_at_a_commit_above_the_high_watermark_waits(cluster: ScriptedCluster) -> None:
    """Offset 7 was committed in epoch 2. The leader of epoch 3 has this record, at first above its high watermark."""
    cluster.committed_epoch = 2
    cluster.leader_epoch, cluster.epoch_0_end, cluster.high_watermark = 3, 30, 5
    query = Query(cluster, **{"startingOffsets": "committed", "kafka.group.id": "g"})
    first = query.next({})
    assert (first["t"], first["$odradek"]["epochs"]) == ({"0": 7}, {"t": {"0": 2}})
    assert query.next(first) == first
    cluster.high_watermark = 30
    second = query.next(first)
    assert [offset for offset, _ in query.read(first, second)] == list(range(7, 30))
    assert second["$odradek"]["epochs"] == {"t": {"0": 3}}


def remove(cluster: ScriptedCluster, start: int) -> None:
    """The broker replies as if records below ``start`` were removed, and refuses requests for topic settings."""
    broker = cluster.brokers[1]

    def list_offsets(message: Any, version: int) -> Any:
        reply = broker.answer_2(message, version)
        if message.topics[0].partitions[0].timestamp == -2:
            reply["topics"][0]["partitions"][0]["offset"] = start
        return reply

    def fetch(message: Any, version: int) -> Any:
        if message.topics[0].partitions[0].fetch_offset < start:
            return fetch_reply(cluster, error=ErrorCode.offset_out_of_range)
        return broker.answer_1(message, version)

    def configs(message: Any, version: int) -> Any:
        reply = broker.answer_32(message, version)
        reply["results"][0]["error_code"] = ErrorCode.invalid_request.value
        return reply

    broker.answers |= {LIST_OFFSETS: list_offsets, FETCH: fetch, DESCRIBE_CONFIGS: configs}


@pytest.mark.parametrize("fails", [True, False])
def test_lost_records_are_reported_although_their_cause_is_unknown(
    cluster: ScriptedCluster, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    remove(cluster, 10)
    message = (
        r"t-0: offsets {} to 9 are lost \(its log starts at 10\), removed by retention or DeleteRecords \(the.*topic t"
    )
    fail_on_data_loss = str(fails).lower()
    committed = {"startingOffsets": "committed", "kafka.group.id": "g", "failOnDataLoss": fail_on_data_loss}
    if fails:
        with pytest.raises(DataLoss, match=message.format(0)):
            read(cluster, failOnDataLoss=fail_on_data_loss)
        with pytest.raises(DataLoss, match=message.format(7)):
            Query(cluster, **committed).next({})
        return
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        assert read(cluster, failOnDataLoss=fail_on_data_loss) == list(range(10, 30))
        assert Query(cluster, **committed).next({})["$odradek"]["from"] == {"t": {"0": 10}}
    assert len(caplog.messages) == 2
    assert all(re.search(message.format(first), text) for first, text in zip((0, 7), caplog.messages, strict=True))


def test_a_missing_partition_is_reported_although_the_topic_lookup_fails(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> Any:
        raise BrokerUnreachable("no broker answers")

    start: Offset = {"t": {"0": 20, "1": 5}}
    strict, lenient = Query(cluster), Query(cluster, failOnDataLoss="false")
    for query in (strict, lenient):
        monkeypatch.setattr(lookups_of(query.reader).admin, "topics", unreachable)
    with pytest.raises(DataLoss, match=r"t-1 is missing .*it is unknown whether its topic exists"):
        strict.next(start)
    assert lenient.next(start)["t"] == {"0": 30}


@pytest.mark.claim(57, part=True)
@pytest.mark.parametrize("fails", [True, False])
def test_the_commit_at_which_a_later_partition_starts_is_checked_too(
    cluster: ScriptedCluster, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The check is the same as at the start of a query. Offset 7 was committed in epoch 2, which ends at offset 5 for
    the leader of epoch 3."""
    cluster.committed_epoch = 2
    cluster.leader_epoch, cluster.epoch_0_end = 3, 5
    given = {"startingOffsets": "committed", "kafka.group.id": "g", "failOnDataLoss": str(fails).lower()}
    query, start = Query(cluster, **given), {"$odradek": {"ids": {"t": str(cluster.topic_id)}}}
    message = "the records that were read at offsets 5 to 6 are lost"
    if fails:
        with pytest.raises(DataLoss, match=message):
            query.next(start)
        return
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        end = query.next(start)
    assert end["$odradek"]["from"] == {"t": {"0": 5}}
    assert [message in text for text in caplog.messages] == [True]


def test_a_reset_to_an_offset_above_a_truncation_is_reported(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """No record that the query read is lost, so the query continues, but not at the offset of the reset."""
    acknowledged: list[int] = []

    def commit(message: Any, version: int) -> Any:
        acknowledged.append(message.topics[0].partitions[0].committed_offset)
        row = {"partition_index": 0, "error_code": 0}
        return {"throttle_time": 0, "topics": [{"name": "t", "partitions": [row]}]}

    cluster.brokers[1].answers[OFFSET_COMMIT] = commit
    # The group has no members: a commit by a member would be no reset.
    empty = {"error_code": 0, "error_message": None, "group_id": "g", "group_state": "Empty", "protocol_type": ""}
    empty |= {"protocol_data": "", "members": [], "authorized_operations": -2147483648}
    cluster.brokers[1].answers[DESCRIBE_GROUPS] = lambda message, version: {"throttle_time": 0, "groups": [empty]}
    cluster.leader_epoch, cluster.committed_epoch, cluster.epoch_0_end = 3, 2, 5
    query = Query(cluster, **{"kafka.group.id": "g", "commitOffsets": "true", "onGroupReset": "follow"})
    with caplog.at_level(logging.WARNING, "odradek.spark"):
        end = query.next({"t": {"0": 30}})
    assert (end["t"], end["$odradek"]["from"]) == ({"0": 30}, {"t": {"0": 5}})
    assert acknowledged == [5]
    assert caplog.messages == [
        "t-0: the group was reset to offset 7, but the log of its leader (epoch 3) diverges at offset 5 from the log "
        "of that commit (truncation: a replica without the lost records became leader, or its broker's data was put "
        "back from an older copy): reading from offset 5"
    ]


@pytest.mark.behaviour(52, part=True)
@pytest.mark.parametrize("fails", [True, False])
def test_a_new_leader_epoch_shows_a_truncation(fails: bool) -> None:
    with scripted(2) as cluster:
        cluster.log = [batch(0, 10), batch(10, 20)]
        cluster.fall_over()
        if fails:
            with pytest.raises(
                DataLoss,
                match=r"data may have been lost: t-0: the log of its leader diverges at offset 8 .*truncation",
            ):
                read(cluster)
        else:
            assert read(cluster, failOnDataLoss="false") == list(range(10))
