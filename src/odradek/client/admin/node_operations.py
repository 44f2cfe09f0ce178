"""The admin requests for the nodes of a cluster: brokers, controllers, and how far each has copied the metadata log."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from odradek.client.cluster import Cluster
from odradek.client.errors import BrokerUnreachable, error_for
from odradek.client.model import ClusterNodes, NodeDescription
from odradek.core.errors import ErrorCode
from odradek.core.ids import METADATA_TOPIC
from odradek.wire.api_keys import DESCRIBE_CLUSTER, DESCRIBE_QUORUM, UNREGISTER_BROKER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
    from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse, PartitionData

    from odradek.client.model import Node

T = TypeVar("T")
_ENDPOINT_TYPE = 1
"""Brokers, in DescribeCluster."""
_BROKER_ROLE, _CONTROLLER_ROLE = "broker", "controller"


async def at_each_broker(cluster: Cluster, what: str, at: Callable[[Node], Awaitable[T]]) -> list[T]:
    """Asks each broker that the cluster takes for alive; a list without one of them would not be whole.

    Raises the first error of a broker. BrokerUnreachable says how many brokers have answered."""
    await cluster.refresh([])
    nodes = cluster.nodes()
    asked = await asyncio.gather(*(at(node) for node in nodes), return_exceptions=True)
    failures = [(node, one) for node, one in zip(nodes, asked, strict=True) if isinstance(one, BaseException)]
    if failures:
        node, failure = failures[0]
        if isinstance(failure, BrokerUnreachable) and len(failures) < len(nodes):
            raise BrokerUnreachable(
                f"{failure}: only broker {node.node_id} has its {what}, and the other {len(nodes) - len(failures)} have"
                f" answered. If it is dead, the cluster notices when its session ends"
                f" (broker.session.timeout.ms, 9 s by default): repeat the command then"
            ) from failure
        raise failure
    return [one for one in asked if not isinstance(one, BaseException)]


async def describe_nodes(cluster: Cluster) -> ClusterNodes:
    """Returns the nodes of the cluster. A broker passes the question about the log on to the active controller."""
    deadline = cluster.deadline()

    async def attempt() -> ClusterNodes:
        connection = await cluster.any_connection()
        brokers = await connection.call(
            DESCRIBE_CLUSTER,
            {
                "include_cluster_authorized_operations": False,
                "endpoint_type": _ENDPOINT_TYPE,
                "include_fenced_brokers": True,
            },
        )
        if brokers.error_code is not ErrorCode.none:
            raise error_for(brokers.error_code, brokers.error_message or "the cluster was not described")
        asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        quorum = await connection.call(DESCRIBE_QUORUM, {"topics": asked})
        if quorum.error_code is not ErrorCode.none:
            raise error_for(quorum.error_code, getattr(quorum, "error_message", "") or "the quorum was not described")
        log = quorum.topics[0].partitions[0]
        if log.error_code is not ErrorCode.none:
            raise error_for(log.error_code, getattr(log, "error_message", "") or "the metadata log was not described")
        topics = await cluster.topics(None, deadline)
        leaders = Counter(one.leader for topic in topics.values() for one in topic.partitions)
        return ClusterNodes(
            brokers.cluster_id,
            tuple(_nodes(brokers, log, _controllers(quorum), leaders)),
            leaders[-1],
            log.leader_epoch,
            log.high_watermark,
        )

    return await cluster.retry("describing the nodes", attempt, deadline)


async def unregister_broker(cluster: Cluster, broker_id: int) -> None:
    """Removes a broker from the cluster. The broker that is asked passes the request on to the controller."""
    deadline = cluster.deadline()

    async def attempt() -> None:
        connection = await cluster.any_connection()
        reply = await connection.call(UNREGISTER_BROKER, {"broker_id": broker_id})
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, f"broker {broker_id}: {reply.error_message or 'it was not unregistered'}")

    await cluster.retry(f"unregistering broker {broker_id}", attempt, deadline)


def _controllers(quorum: DescribeQuorumResponse) -> dict[int, tuple[str, int]]:
    """Returns the addresses of the controllers. Versions before 2 have none."""
    return {
        node.node_id: (listener.host, listener.port)
        for node in getattr(quorum, "nodes", ())
        for listener in node.listeners[:1]
    }


def _nodes(
    described: DescribeClusterResponse, log: PartitionData, controllers: Mapping[int, tuple[str, int]],
    leaders: Mapping[int, int],
) -> list[NodeDescription]:  # fmt: skip
    ends = {one.replica_id: one.log_end_offset for one in (*log.observers, *log.current_voters)}
    end = ends.get(log.leader_id, -1)
    brokers = {one.broker_id: one for one in described.brokers}
    voters = {one.replica_id for one in log.current_voters}
    nodes = []
    for node_id in sorted(brokers.keys() | voters):
        broker = brokers.get(node_id)
        host, port = controllers.get(node_id, ("", -1)) if broker is None else (broker.host, broker.port)
        own = ends.get(node_id, -1)
        known = None if own < 0 else own
        nodes.append(
            NodeDescription(
                node_id,
                (*((_BROKER_ROLE,) if broker is not None else ()), *((_CONTROLLER_ROLE,) if node_id in voters else ())),
                host,
                port,
                None if broker is None else broker.rack,
                broker is not None and bool(getattr(broker, "is_fenced", False)),
                node_id == log.leader_id,
                leaders.get(node_id, 0),
                known,
                None if known is None or end < 0 else max(end - known, 0),
            )
        )
    return nodes
