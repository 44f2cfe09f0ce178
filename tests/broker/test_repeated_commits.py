"""A commit that a client sends again replaces a newer one of another client. The checker knows it by ``attempts``."""

from __future__ import annotations

import threading
from typing import Any

import confluent_kafka
from support.brokers import eventually, unique
from support.recorded_clients import RecordedHistory, SentCommits

import odradek
from odradek.client import Admin
from odradek.client.admin.offsets_topic import entries
from odradek.client.model import NewTopic
from odradek.codecs.offsets_topic import OffsetCommitRecord, decode
from odradek.core.ids import TopicPartition

FIRST, NEWER = 1_111, 2_222
RETRY_MS = 2_000
"""Long enough for the newer commit, also on a busy machine: librdkafka waits this long before it sends again."""


def consumer_of(bootstrap: str, group: str, name: str, requests: SentCommits) -> Any:
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "client.id": name, "debug": "protocol",
        "enable.auto.commit": False, "retry.backoff.ms": RETRY_MS, "retry.backoff.max.ms": RETRY_MS,
    }  # fmt: skip
    return confluent_kafka.Consumer(settings, logger=requests.logger)


def test_a_repeated_commit_is_written_twice_around_a_newer_one() -> None:
    """The connection ends in place of the reply. The log of the offsets topic has all three records."""
    history, topic, group = RecordedHistory(), unique("t"), unique("g")
    at = {"group": group, "topic": topic, "partition": 0}
    where = TopicPartition(topic, 0)
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        broker.faults.disconnect("OffsetCommit", client_id="first", when="after")
        requests = SentCommits("first"), SentCommits("newer")
        first = consumer_of(broker.bootstrap_servers, group, "first", requests[0])
        newer = consumer_of(broker.bootstrap_servers, group, "newer", requests[1])

        def commit(consumer: Any, offset: int) -> None:
            consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
            consumer.poll(0)

        def shown() -> int | None:
            found = admin.list_group_offsets(group, [where]).get(where)
            return None if found is None else found.offset

        repeated = threading.Thread(target=commit, args=(first, FIRST))
        repeated.start()
        eventually(lambda: shown() == FIRST)
        commit(newer, NEWER)
        repeated.join()
        records = [decode(one.key, one.value) for one in entries(admin, group)]
        assert shown() == FIRST
        for one in (first, newer):
            one.close()
    written = [one.value.offset for one in records if isinstance(one, OffsetCommitRecord) and one.value is not None]
    assert written == [FIRST, NEWER, FIRST]
    assert [one.count for one in requests] == [2, 1]

    history.add("commit", "first", 0, end=9, offset=FIRST, **at)
    history.add("offset_fetch", "other", 2, end=3, offset=FIRST, **at)
    history.add("commit", "newer", 4, end=5, offset=NEWER, **at)
    history.add("offset_fetch", "other", 10, end=11, offset=FIRST, **at)
    assert [one.name for one in history.check()] == ["lost commit"], "a commit takes effect once"
    allowed = RecordedHistory()
    allowed.add("commit", "first", 0, end=9, offset=FIRST, attempts=requests[0].count, **at)
    for number, (name, offset) in enumerate([("other", FIRST), ("newer", NEWER), ("other", FIRST)]):
        op = "commit" if name == "newer" else "offset_fetch"
        allowed.add(op, name, 2 + 4 * number, end=3 + 4 * number, offset=offset, **at)
    assert allowed.check() == []
