"""The delta between two images of a cluster's catalogue: what a snapshot has changed for a broker that takes it.

A broker takes a snapshot from the controller when the records between its own image and the snapshot are gone. Its
publishers get the same kind of delta as from records.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TypeVar

from odradek.catalog.delta import Delta
from odradek.catalog.state import Topic
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.records import UnregisterBrokerRecord

K = TypeVar("K")


def delta_between(before: ClusterCatalog, after: ClusterCatalog) -> Generator[None, None, Delta]:
    """Returns the changes from one image to a later one, in steps: one for each topic.

    As after a replay, the new topics and partitions are only in the delta. So they are taken out of ``after`` until
    ``publish``. The delta has no producer id blocks: a broker does not use those of a snapshot.
    """
    delta = Delta(after)
    for topic in list(after.topics.values()):
        former = before.topics_by_id.get(topic.id)
        if former is None:
            delta.created[topic.id] = topic
        else:
            _compare(delta, former, topic)
        yield None
    delta.deleted = {one.id: one for one in before.topics.values() if one.id not in after.topics_by_id}
    delta.configs = dict.fromkeys(_changed(before.configs, after.configs))
    delta.quotas = dict.fromkeys(_changed(before.quotas, after.quotas))
    delta.users = dict.fromkeys(_changed(before.users, after.users))
    delta.acls = dict.fromkeys(_changed(before.acls.by_id, after.acls.by_id))
    delta.tokens = dict.fromkeys(_changed(before.tokens, after.tokens))
    delta.features = dict.fromkeys(_changed(before.features, after.features))
    _compare_nodes(delta, before, after)
    for topic in delta.created.values():
        after.hide(topic)
    for topic in delta.grown.values():
        count = before.topics_by_id[topic.id].partition_count
        after.publish(Topic(topic.name, topic.id, topic.partitions[:count]))
    return delta


def _compare(delta: Delta, former: Topic, topic: Topic) -> None:
    if topic.partition_count > former.partition_count:
        delta.grown[topic.id] = topic
    for index, (old, new) in enumerate(zip(former.partitions, topic.partitions, strict=False)):
        if old != new:
            delta.partitions[topic.name, index] = new


def _changed(before: Mapping[K, object], after: Mapping[K, object]) -> Iterable[K]:
    """Yields the keys whose values differ, or that only one of both has."""
    yield from (key for key, value in after.items() if before.get(key) != value)
    yield from (key for key in before if key not in after)


def _compare_nodes(delta: Delta, before: ClusterCatalog, after: ClusterCatalog) -> None:
    old, new = before.nodes, after.nodes
    delta.nodes += [
        UnregisterBrokerRecord(one.broker_id, one.epoch)
        for one in old.brokers.values()
        if one.broker_id not in new.brokers
    ]
    delta.nodes += [new.brokers[broker_id].record() for broker_id in sorted(_changed_present(old.brokers, new.brokers))]
    changed = _changed_present(old.controllers, new.controllers)
    delta.nodes += [new.controllers[node_id] for node_id in sorted(changed)]


def _changed_present(before: Mapping[K, object], after: Mapping[K, object]) -> list[K]:
    return [key for key, value in after.items() if before.get(key) != value]
