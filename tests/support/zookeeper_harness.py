"""A group with its offsets in ZooKeeper: consumers of a topic with two partitions, and what other programs write."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

import odradek
from odradek import Consumer
from odradek.core.ids import TopicPartition as Tp
from support.brokers import eventually
from support.insides import engine_of


class GroupHarness:
    """One group and one topic with ten records in each of two partitions."""

    def __init__(self, bootstrap: str, connect: str, kazoo: KazooClient, group: str, topic: str) -> None:
        self.bootstrap, self.connect, self.kazoo, self.group, self.topic = bootstrap, connect, kazoo, group, topic
        self.a, self.b = Tp(topic, 0), Tp(topic, 1)

    def settings(self, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap, "group_id": self.group, "auto_offset_reset": "earliest",
            "enable_auto_commit": False, "offsets_storage": "zookeeper", "zookeeper_connect": self.connect,
        } | settings  # fmt: skip

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(self.settings(**settings))

    def put(self, offsets: dict[int, object]) -> None:
        for partition, offset in offsets.items():
            path = f"/consumers/{self.group}/offsets/{self.topic}/{partition}"
            data = str(offset).encode()
            if self.kazoo.exists(path):
                self.kazoo.set(path, data)
            else:  # one write creates the znode with its data: a consumer may look between two writes
                self.kazoo.create(path, data, makepath=True)

    def offset(self, partition: int) -> int | None:
        path = f"/consumers/{self.group}/offsets/{self.topic}/{partition}"
        self.kazoo.sync("/")  # this connection's server may be behind ZooKeeper's leader
        return int(self.kazoo.get(path)[0]) if self.kazoo.exists(path) else None

    def owner(self, partition: int) -> str | None:
        path = f"/consumers/{self.group}/owners/{self.topic}/{partition}"
        self.kazoo.sync("/")
        return self.kazoo.get(path)[0].decode() if self.kazoo.exists(path) else None

    def own(self, partition: int, name: str = "old_host-1-0") -> str:
        """Makes another consumer the owner of a partition, as Kafka's old consumers do."""
        path = f"/consumers/{self.group}/owners/{self.topic}/{partition}"
        return str(self.kazoo.create(path, name.encode(), ephemeral=True, makepath=True))

    def ids(self) -> list[str]:
        path = f"/consumers/{self.group}/ids"
        self.kazoo.sync("/")
        return list(self.kazoo.get_children(path)) if self.kazoo.exists(path) else []


class OffsetWatcher:
    """Watches the offset of partition 0 through the harness's ``kazoo``, and notes each offset that it sees."""

    def __init__(self, harness: GroupHarness) -> None:
        self.seen: list[int] = []
        path = f"/consumers/{harness.group}/offsets/{harness.topic}/0"

        @harness.kazoo.DataWatch(path)
        def changed(data: bytes | None, stat: object) -> None:
            if data is not None:
                self.seen.append(int(data))

    def wait_for(self, offset: int) -> None:
        eventually(lambda: self.seen[-1:] == [offset], within_s=60)

    def assert_never_back(self) -> None:
        assert self.seen == sorted(self.seen), self.seen


def read(consumer: Consumer, count: int) -> list[int]:
    """The offsets of the next ``count`` records."""
    found: list[int] = []

    def more() -> bool:
        found.extend(record.offset for record in consumer.poll(0.2).records())
        return len(found) >= count

    eventually(more, within_s=30)
    return found


def expire(zookeeper: odradek.ZooKeeper, consumer: Consumer) -> None:
    """Ends the ZooKeeper session of a consumer, and waits until the consumer notices."""
    store = engine_of(consumer).group.storage.store
    before = store.expiries
    zookeeper.expire_session(store.connection.client)
    eventually(lambda: store.expiries > before, within_s=30)
