"""Connections that a node or a client opens in the whole-broker simulator: bytes in, bytes out, in virtual time."""

from __future__ import annotations

from functools import partial
from typing import Any

from support.cluster_nodes import Nodes, produce
from support.logs import batch

from odradek.broker.remote.node_request import NodeRequest
from odradek.broker.remote.peers import Channel
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.client.cluster import Cluster
from odradek.client.config import ClientConfig
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import FetchingReplica, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.net.transports import Address
from odradek.wire import fetch_messages
from odradek.wire.api_keys import CREATE_TOPICS, FETCH, METADATA
from odradek.wire.fetch_messages import FetchPartition, FetchReply, FetchRequestData, Limits

VERSION = 17
REPLICAS = Channel("replicas")
SIZE = len(batch(3))


def replicated(nodes: Nodes) -> Any:
    """Creates the topic ``t``, led by broker 1 and followed by broker 2. Returns its id."""
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "configs": [],
             "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}]}  # fmt: skip
    message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    made = nodes.controller.connect().call(CREATE_TOPICS, 7, message).topics[0]
    assert made.error_code is ErrorCode.none, made
    nodes.settle()
    return made.topic_id


def follower_fetch(nodes: Nodes, topic_id: Any, offset: int, wait_ms: int = 0) -> NodeRequest[FetchReply]:
    """Broker 2's fetch from broker 1, packed and read by ``wire/fetch_messages``."""
    epoch = nodes.brokers[1].broker.partitions["t", 0].leader_epoch
    own = nodes.brokers[2].broker.catalog.registered_brokers()[2].epoch
    limits = Limits(wait_ms, 1, 1 << 20, 0, replica=FetchingReplica(2, own))
    asked = FetchRequestData({TopicPartition("t", 0): FetchPartition(topic_id, offset, epoch, 1 << 20, -1, 0)})
    return NodeRequest(
        FETCH, VERSION, fetch_messages.pack(VERSION, limits, asked),
        lambda data: fetch_messages.parse_reply(VERSION, memoryview(data), 1),
    )  # fmt: skip


def wait_for(nodes: Nodes, promise: Deferred[FetchReply | None], within_ms: int = 5_000) -> FetchReply | None:
    end_ms = nodes.world.now_ms + within_ms
    while not promise.resolved:
        assert nodes.world.now_ms < end_ms, "no reply"
        nodes.world.advance(1)
    return promise.value


def send(nodes: Nodes, request: NodeRequest[FetchReply], timeout_ms: int = 3_000) -> Deferred[FetchReply | None]:
    follower = nodes.brokers[2]
    return follower.node.loop.run(
        lambda: follower.role.peers.send(1, request, timeout_ms, channel=REPLICAS, repeats=True)
    )


def test_a_follower_fetches_from_a_leader_over_a_connection_of_its_own() -> None:
    nodes = Nodes()
    topic_id = replicated(nodes)
    waiting = send(nodes, follower_fetch(nodes, topic_id, 0, wait_ms=2_000))
    nodes.world.advance(50)
    assert not waiting.resolved, "the leader has no record"
    assert produce(nodes.brokers[1], "t", 0, acks=1) is ErrorCode.none, "no follower has to have it"
    reply = wait_for(nodes, waiting)
    assert reply is not None
    (part,) = reply.partitions
    assert (part.error_code, len(part.records)) == (ErrorCode.none, SIZE)
    partition = nodes.brokers[1].broker.partitions["t", 0]
    assert isinstance(partition, ReplicatedPartition)
    assert partition.leader is not None
    assert partition.leader.followers.states[2].end_offset == 0
    wait_for(nodes, send(nodes, follower_fetch(nodes, topic_id, 3)))
    assert partition.leader.followers.states[2].end_offset == 3


def test_a_fetch_follows_a_restarted_leader_and_ends_if_the_network_is_cut() -> None:
    nodes = Nodes()
    topic_id = replicated(nodes)
    assert wait_for(nodes, send(nodes, follower_fetch(nodes, topic_id, 0))) is not None
    waiting = send(nodes, follower_fetch(nodes, topic_id, 0, wait_ms=1_000), timeout_ms=20_000)
    nodes.world.advance(50)
    nodes.brokers[1].kill()
    nodes.brokers[1].begin()
    nodes.brokers[1].run_until_joined()
    reply = wait_for(nodes, waiting, 20_000)
    assert reply is not None, "the request was sent again over a new connection"
    nodes.settle()
    nodes.network.cut_off.add(1)
    assert wait_for(nodes, send(nodes, follower_fetch(nodes, topic_id, 0))) is None
    nodes.network.cut_off.clear()
    assert wait_for(nodes, send(nodes, follower_fetch(nodes, topic_id, 0))) is not None


def test_a_client_runs_in_the_simulator_over_a_passed_transport() -> None:
    """The connection of the client library negotiates versions, and its cluster finds the brokers."""
    nodes = Nodes()
    nodes.create("u", 1, 2)
    nodes.settle()
    near = nodes.brokers[2].node

    async def connect(make: Any, host: str, port: int, *, ssl: Any, server_hostname: Any) -> Any:
        assert (ssl, server_hostname) == (None, None)
        return await near.connect_to(make, host, port)

    async def ask() -> tuple[list[int], int]:
        connection = await BrokerConnection.open(Address("b1", 9092), client_id="c", connect=connect)
        everything = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        reply = await connection.call(METADATA, everything, ceiling=12)
        connection.close()
        cluster = Cluster(ClientConfig("b1:9092"), connect)
        await cluster.refresh(["u"])
        leader = cluster.leader(TopicPartition("u", 1))
        await cluster.close()
        return sorted(one.node_id for one in reply.brokers), leader

    task = near.loop.run(partial(near.loop.create_task, ask()))
    while not task.done():
        nodes.world.advance(1)
    assert task.result() == ([1, 2], 2)
