"""A broker that does not lead a partition any more: what its clients get, until it leads the partition again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import uvloop
from support.brokers import create_offsets_topic
from support.logs import batch
from support.peers import Peer

from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.records import Id16, MetadataRecord, PartitionChangeRecord
from odradek.catalog.state import CatalogState, OwnRecords
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire.api_keys import DESCRIBE_LOG_DIRS, FETCH, LIST_OFFSETS, OFFSET_COMMIT, PRODUCE

OTHER = 2
LEFT = ErrorCode.not_leader_or_follower


class LeaderChange(OwnRecords):
    """Gives a partition another leader, as the controller of a cluster does."""

    def __init__(self, topic_id: Id16, leader: int) -> None:
        self._record = PartitionChangeRecord(0, topic_id, leader=leader)

    def records(self, catalog: CatalogState) -> list[MetadataRecord]:
        return [self._record]


def elect(broker: BrokerServer, name: str, leader: int) -> None:
    topic = broker.catalog.topic(name)
    assert topic is not None
    change = LeaderChange(topic.id, leader)
    broker.finish(broker.controller.steps_of(lambda written: written.add(change)))


async def codes(peer: Peer) -> list[ErrorCode]:
    """The errors of Produce, Fetch and ListOffsets, and of a partition that does not exist."""
    topic = {"name": "t", "partition_data": [{"index": at, "records": batch(1)} for at in (0, 7)]}
    message: dict[str, Any] = {"transactional_id": None, "acks": 1, "timeout": 9000, "topic_data": [topic]}
    produced = (await peer.ask(PRODUCE, 9, message)).responses[0].partition_responses
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    message = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0,
               "topics": [{"topic": "t", "partitions": wanted}]}  # fmt: skip
    fetched = (await peer.ask(FETCH, 4, message)).responses[0].partitions
    asked = [{"partition_index": 0, "timestamp": -1}]
    message = {"replica_id": -1, "topics": [{"name": "t", "partitions": asked}]}
    listed = (await peer.ask(LIST_OFFSETS, 1, message)).topics[0].partitions
    return [part.error_code for part in (*produced, *fetched, *listed)]


async def commit_code(peer: Peer) -> ErrorCode:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    message = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1,
        "topics": [{"name": "t", "partitions": [row]}],
    }  # fmt: skip
    code: ErrorCode = (await peer.ask(OFFSET_COMMIT, 2, message)).topics[0].partitions[0].error_code
    return code


async def listed_logs(peer: Peer) -> int:
    reply = await peer.ask(DESCRIBE_LOG_DIRS, 1, {"topics": [{"topic": "t", "partitions": [0]}]})
    return sum(len(topic.partitions) for one in reply.results for topic in one.topics)


def test_requests_and_groups_follow_the_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = BrokerServer(BrokerConfig({"offsets.topic.num.partitions": "1"}), tmp_path, ("127.0.0.1", 0))
        await broker.start()
        try:
            broker.create_topic("t", partition_count=1)
            create_offsets_topic(broker)
            peer = Peer(broker)
            ok, unknown = ErrorCode.none, ErrorCode.unknown_topic_or_partition
            assert await codes(peer) == [ok, unknown, ok, ok]
            assert await commit_code(peer) == ok

            elect(broker, "t", OTHER)
            elect(broker, OFFSETS_TOPIC, OTHER)
            assert broker.partition("t", 0) is None
            assert await codes(peer) == [LEFT, unknown, LEFT, LEFT]
            assert await commit_code(peer) == ErrorCode.not_coordinator
            assert await listed_logs(peer) == 1, "the log is still here"

            elect(broker, "t", broker.node_id)
            elect(broker, OFFSETS_TOPIC, broker.node_id)
            assert await codes(peer) == [ok, unknown, ok, ok]
            while (code := await commit_code(peer)) == ErrorCode.coordinator_load_in_progress:
                await asyncio.sleep(0)
            assert code == ok
            peer.close()
        finally:
            await broker.abandon()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 30))
