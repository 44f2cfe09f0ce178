"""Partitions with several replicas where the controller is one of the brokers, and where nodes use TLS and logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.certificates import Authority
from support.cluster_processes import COMBINED, ClusterProcesses, CombinedCluster
from support.logs import batch
from support.secured_cluster import AUTHORIZER, SecuredCluster, plain_login, stores

from odradek.batches.header import scan
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CREATE_TOPICS, FETCH, METADATA, PRODUCE

NONE = ErrorCode.none


@pytest.fixture(scope="module", params=["both roles", "secured"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    home: Path = tmp_path_factory.mktemp("replicas")
    if request.param == "both roles":
        with CombinedCluster(home) as combined:
            yield combined
        return
    authority = Authority(home / "authority")
    settings = {
        **stores(authority, "controller"), **stores(authority, "inner"), **plain_login("inner"), **AUTHORIZER,
        "listener.name.controller.ssl.client.auth": "required", "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "super.users": "User:node;User:ANONYMOUS",
    }  # fmt: skip
    protocols = {"CONTROLLER": "SSL", "INNER": "SASL_SSL", "OUTER": "PLAINTEXT"}
    with SecuredCluster(home, protocols, settings) as secured:
        yield secured


def address(cluster: ClusterProcesses, number: int) -> str:
    return cluster.outer[number] if isinstance(cluster, SecuredCluster) else cluster.brokers[number].bootstrap


def call(cluster: ClusterProcesses, number: int, api_key: int, version: int, message: dict[str, Any]) -> Any:
    with Wire(address(cluster, number)) as wire:
        return wire.call(api_key, version, message)


def replicas(cluster: ClusterProcesses, number: int, topic: str) -> list[tuple[int, set[int], set[int]]]:
    """The leader, the replicas and the ISR of each partition, as a broker knows them."""
    asked = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False,
             "include_topic_authorized_operations": False}  # fmt: skip
    (found,) = call(cluster, number, METADATA, 12, asked).topics
    return [(one.leader_id, set(one.replica_nodes), set(one.isr_nodes)) for one in found.partitions]


def produce(cluster: ClusterProcesses, leader: int, partition: int, count: int, acks: int = -1) -> ErrorCode:
    row = {"name": "r", "partition_data": [{"index": partition, "records": batch(count)}]}
    asked = {"transactional_id": None, "acks": acks, "timeout": 20_000, "topic_data": [row]}
    found: ErrorCode = call(cluster, leader, PRODUCE, 9, asked).responses[0].partition_responses[0].error_code
    return found


def read(cluster: ClusterProcesses, leader: int, partition: int) -> tuple[int, int]:
    """The high watermark of a partition, and the number of records below it."""
    wanted = [{"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    asked = {
        "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0,
        "topics": [{"topic": "r", "partitions": wanted}],
    }  # fmt: skip
    ((found,),) = [topic.partitions for topic in call(cluster, leader, FETCH, 4, asked).responses]
    assert found.error_code is NONE
    return found.high_watermark, sum(header.record_count for _, header in scan(found.records))


def test_replicas_follow_and_acks_all_waits_for_them(cluster: ClusterProcesses) -> None:
    """Each broker leads partitions that the others copy; the node with both roles leads and follows, too."""
    numbers = sorted(cluster.brokers)
    count = len(numbers)
    topic = {"name": "r", "num_partitions": -1, "replication_factor": -1, "configs": [
        {"name": "min.insync.replicas", "value": str(count)}
    ], "assignments": [
        {"partition_index": at, "broker_ids": numbers[at:] + numbers[:at]} for at in range(count)
    ]}  # fmt: skip
    message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    assert call(cluster, numbers[0], CREATE_TOPICS, 7, message).topics[0].error_code is NONE
    eventually(lambda: all(isr == set(numbers) for _, _, isr in replicas(cluster, numbers[-1], "r")), within_s=60)
    for at, leader in enumerate(numbers):
        assert produce(cluster, leader, at, 3) is NONE


def test_an_isr_shrinks_and_grows(cluster: ClusterProcesses) -> None:
    """The leader asks the controller, at the node with both roles by its own listener for controllers. Below
    min.insync.replicas nothing more is committed: the records of acks=1 are read when the follower has them."""
    numbers = sorted(cluster.brokers)
    down = next(number for number in numbers if number != COMBINED)
    cluster.brokers[down].kill()
    up = numbers[-1]
    led = numbers.index(up)
    eventually(lambda: all(down not in isr for _, _, isr in replicas(cluster, up, "r")), within_s=60)
    assert produce(cluster, up, led, 2) is ErrorCode.not_enough_replicas
    assert produce(cluster, up, led, 2, acks=1) is NONE
    assert read(cluster, up, led) == (3, 3)
    cluster.brokers[down].start()
    eventually(lambda: all(isr == set(numbers) for _, _, isr in replicas(cluster, up, "r")), within_s=60)
    eventually(lambda: read(cluster, up, led) == (5, 5), within_s=60)
    assert produce(cluster, up, led, 1) is NONE
    assert read(cluster, up, led) == (6, 6)
