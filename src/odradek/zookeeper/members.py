"""Registered consumers and the owners of partitions, as Kafka's consumers up to 1.1 keep them in ZooKeeper.

A consumer registers at ``/consumers/GROUP/ids/CONSUMER``. A consumer owns a partition while the znode
``/consumers/GROUP/owners/TOPIC/PARTITION`` contains the id of one of its threads (``CONSUMER-0``). Both znodes are
ephemeral: they end with the consumer's session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from odradek.core.ids import TopicPartition
from odradek.zookeeper.connection import ZooKeeperConnection
from odradek.zookeeper.layout import parse_partition
from odradek.zookeeper.store import InvalidZnode

BROKER_TOPICS = "/brokers/topics"


class ConsumerRegistration(NamedTuple):
    """A registered consumer. ``subscription``: the number of its threads for each topic, or for a pattern of topics.

    ``pattern``: ``static`` (topic names), ``white_list`` or ``black_list``. ``registered_ms`` since 1970."""

    consumer_id: str
    subscription: Mapping[str, int]
    pattern: str
    registered_ms: int

    def threads(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """Returns the ids of the consumer's threads by subscribed topic. A pattern selects among ``topics``."""
        ids: dict[str, list[str]] = {}
        for wanted, count in self.subscription.items():
            for topic in [wanted] if self.pattern == "static" else self._matching_topics(wanted, topics):
                ids[topic] = [f"{self.consumer_id}-{number}" for number in range(count)]
        return ids

    def _matching_topics(self, pattern: str, topics: Sequence[str]) -> list[str]:
        """Returns the topics that the pattern selects; a ``black_list`` selects those that do not match.

        As in Kafka, a comma separates alternatives, and the pattern matches whole names."""
        compiled = re.compile(pattern.strip().strip("\"'").replace(",", "|").replace(" ", ""))
        return [t for t in topics if (compiled.fullmatch(t) is not None) == (self.pattern == "white_list")]


class GroupMembers(NamedTuple):
    """The members of a group in ZooKeeper, the owner (a thread's id) of each owned partition, and invalid znodes."""

    group: str
    consumers: tuple[ConsumerRegistration, ...]
    owners: dict[TopicPartition, str]
    invalid: tuple[InvalidZnode, ...] = ()

    def live(self) -> list[str]:
        """Returns the ids of registered consumers, and the thread ids of owners without a registration.

        The result includes consumers with an invalid registration, because a registration's znode exists only while
        the consumer has a session."""
        ids = [one.consumer_id for one in self.consumers]
        ids += [one.path.rpartition("/")[2] for one in self.invalid if "/ids/" in one.path]
        others = {thread for thread in self.owners.values() if not thread.startswith(tuple(f"{id_}-" for id_ in ids))}
        return sorted(ids) + sorted(others)


class OwnerRow(NamedTuple):
    """A subscribed or owned partition, its owner (None: it has none), and the problem ("" for none).

    Partition -1 stands for a subscribed topic that does not exist."""

    tp: TopicPartition
    owner: str | None
    problem: str = ""


def read_members(connection: ZooKeeperConnection, group: str) -> GroupMembers:
    """Returns the members and owners of a group. Raises ZooKeeperErrors."""
    root = f"/consumers/{group}"
    ids, topics = connection.children_of([f"{root}/ids", f"{root}/owners"])
    consumers: list[ConsumerRegistration] = []
    invalid: list[InvalidZnode] = []
    for znode in connection.get_many([f"{root}/ids/{name}" for name in ids or ()]):
        if znode is None:
            continue
        registration = parse_registration(znode.path.rpartition("/")[2], znode.data)
        if isinstance(registration, str):
            invalid.append(InvalidZnode(znode.path, registration, znode.data))
        else:
            consumers.append(registration)
    paths = [f"{root}/owners/{topic}" for topic in topics or ()]
    names = connection.children_of(paths)
    owner_paths = [f"{path}/{name}" for path, some in zip(paths, names, strict=True) for name in some or ()]
    owners: dict[TopicPartition, str] = {}
    for znode in connection.get_many(owner_paths):
        if znode is None:
            continue
        topic, name = znode.path.split("/")[-2:]
        partition = parse_partition(name)
        if isinstance(partition, str):
            invalid.append(InvalidZnode(znode.path, partition, znode.data))
        else:
            owners[TopicPartition(topic, partition)] = (znode.data or b"").decode(errors="replace")
    return GroupMembers(group, tuple(sorted(consumers)), dict(sorted(owners.items())), tuple(invalid))


def parse_registration(consumer_id: str, data: bytes | None) -> ConsumerRegistration | str:
    """Reads the JSON of a registration. Returns the reason if it is not valid."""
    try:
        fields = json.loads(data or b"")
        subscription = {str(topic): int(count) for topic, count in fields["subscription"].items()}
        pattern = str(fields.get("pattern", "static"))
        if pattern != "static":
            [re.compile(text.replace(",", "|")) for text in subscription]
        return ConsumerRegistration(consumer_id, subscription, pattern, int(fields.get("timestamp", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, re.error):
        return "it is not the registration of a consumer (JSON with subscription, pattern, timestamp)"


def broker_partitions(connection: ZooKeeperConnection) -> dict[str, list[int]]:
    """Returns the partitions of the topics that brokers have registered in this ZooKeeper (``/brokers/topics``).

    The result omits a topic whose znode has no valid list of partitions."""
    topics = connection.children(BROKER_TOPICS) or []
    partitions: dict[str, list[int]] = {}
    for topic, znode in zip(topics, connection.get_many([f"{BROKER_TOPICS}/{t}" for t in topics]), strict=True):
        try:
            partitions[topic] = sorted(int(name) for name in json.loads((znode and znode.data) or b"")["partitions"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return dict(sorted(partitions.items()))


def check_owners(members: GroupMembers, partitions: Mapping[str, Sequence[int]]) -> list[OwnerRow]:
    """Checks that each partition of each subscribed topic has an owner that has registered for the topic.

    The rules are those of Kafka's VerifyConsumerRebalance. The result has a row for each subscribed partition, for each
    subscribed topic that does not exist, and for each other owned partition."""
    threads: dict[str, set[str]] = {}
    for consumer in members.consumers:
        for topic, ids in consumer.threads(list(partitions)).items():
            threads.setdefault(topic, set()).update(ids)
    rows = []
    for topic in sorted(threads):
        if topic not in partitions:
            rows.append(OwnerRow(TopicPartition(topic, -1), None, "the subscribed topic does not exist"))
        for partition in partitions.get(topic, ()):
            tp = TopicPartition(topic, partition)
            owner = members.owners.get(tp)
            if owner is None:
                rows.append(OwnerRow(tp, None, "no owner"))
            elif owner not in threads[topic]:
                rows.append(OwnerRow(tp, owner, "the owner has not registered for the topic"))
            else:
                rows.append(OwnerRow(tp, owner))
    known = {row.tp for row in rows}
    rows += [
        OwnerRow(
            tp, owner, "no registered consumer subscribes to it" if tp.topic not in threads else "no such partition"
        )
        for tp, owner in members.owners.items()
        if tp not in known
    ]
    return rows
