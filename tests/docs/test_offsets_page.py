"""docs/consumer-offsets.md is correct: its examples run in order and print the shown output."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import DOCS, close_all, examples, imported_packages

from odradek import Admin, Consumer, TopicPartition
from odradek.client import CommitFailed, NoOffsetForPartition
from odradek.client.consumer.records import Polled, Record

PAGE = DOCS / "consumer-offsets.md"


@pytest.fixture
def follower_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A scripted cluster whose leader has ten records, of which seven are replicated."""
    monkeypatch.syspath_prepend(str(PAGE.parent.parent / "tests" / "client"))
    from support.scripted import FETCH, ScriptedCluster, fetch_reply

    from odradek.batches.encode import encode_batch
    from odradek.core.effects import SimpleRecord

    cluster = ScriptedCluster(1)
    for number in range(10):
        data = encode_batch([SimpleRecord(b"", b"%d" % number)], now_ms=1_700_000_000_000, base_offset=number)
        cluster.log.append((number, data))

    def answer(message: Any, version: int) -> Any:
        asked, replicated = message.topics[0].partitions[0].fetch_offset, cluster.high_watermark
        records = b"".join(data for offset, data in cluster.log if asked <= offset < replicated)
        if not records:
            time.sleep(0.05)  # like a broker that waits for more records
        return fetch_reply(cluster, records)

    def replicate(count: int) -> None:
        cluster.high_watermark = count

    cluster.brokers[1].answers[FETCH] = answer
    cluster.replicate = replicate
    replicate(7)
    yield cluster
    for one in cluster.brokers.values():
        one.stop()


@pytest.mark.claim(3, 6, 17, 36, 39, 41, 42, 66, 67)
@pytest.mark.claim(14, 40, part="a")
@pytest.mark.claim(23, part="ad")
@pytest.mark.claim(2, 18, 19, 37, 46, 49, 50, 51, 52, 54, 55, 57, 58, 61, 68, 69, 70, 71, part=True)
@pytest.mark.claim(79, 83, 84, 86, 90, 98, part=True)
def test_the_examples_print_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        for example in examples(PAGE):
            example.check(namespace)
    finally:
        if "process" in namespace:
            namespace["process"].kill()
        close_all(
            namespace, ("stuck", "other", "survivor", "one", "two", "first", "second", "reader", "admin", "broker")
        )
    sys.stdout.flush()


def test_the_examples_need_what_the_page_says() -> None:
    assert [one for one in examples(PAGE) if one.needs] == []
    assert imported_packages(examples(PAGE)) - sys.stdlib_module_names == {"odradek"}


def test_the_picture_of_the_four_offsets_is_correct(follower_behind: Any) -> None:
    """As in the picture, the leader's log ends at 10 and the follower's at 7. Unlike in the picture, no record is
    deleted, so a consumer gets offsets 0 to 6 until the follower has caught up."""

    def values(polled: Polled) -> list[int]:
        return [int(record.value or b"") for record in polled.records()]

    text = PAGE.read_text()
    assert "a consumer gets offsets 4 to 6, and `end_offsets` returns 7" in " ".join(text.split())
    t = TopicPartition("t", 0)
    with Consumer(bootstrap_servers=follower_behind.bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([t])
        assert reader.end_offsets([t])[t] == 7
        assert values(reader.poll(5)) == [0, 1, 2, 3, 4, 5, 6]
        assert values(reader.poll(0.1)) == []
        follower_behind.replicate(10)  # the follower has caught up
        assert reader.end_offsets([t])[t] == 10
        assert values(reader.poll(5)) == [7, 8, 9]


@pytest.mark.slow
def test_the_example_of_transactions_runs_on_apache_kafka(tmp_path: Path) -> None:
    from support.brokers import apache_broker

    from bench.apache import Unavailable

    first, *others = examples(PAGE)
    (example,) = [one for one in others if "transactional_id" in one.program]
    try:
        broker = apache_broker(tmp_path, {"group.initial.rebalance.delay.ms": "0"})
        broker.start()
    except Unavailable as error:
        pytest.skip(f"no Apache Kafka: {error}")
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        first.check(namespace)
        namespace["admin"].close()
        namespace |= {"bootstrap": broker.bootstrap, "admin": Admin(broker.bootstrap)}
        example.check(namespace)
    finally:
        close_all(namespace, ("admin", "broker"))
        broker.stop()


def test_the_names_of_the_three_clients_exist() -> None:
    import confluent_kafka
    import confluent_kafka.admin

    table = PAGE.read_text().partition("## Names in Java and confluent-kafka")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 15
    ours = {"Admin": Admin, "record": Record, "polled": Polled()} | {
        error.__name__: error for error in (CommitFailed, NoOffsetForPartition)
    }
    theirs = {"AdminClient": confluent_kafka.admin.AdminClient, "KafkaException": confluent_kafka.KafkaException}
    for columns in rows:
        for column, classes, consumer, module in (
            (columns[0], ours, Consumer, None),
            (columns[2] if len(columns) > 2 else "", theirs, confluent_kafka.Consumer, confluent_kafka),
        ):
            for name in re.findall(r"`([\w.]+)[`(]", column):
                if "." in name:
                    owner, _, attribute = name.partition(".")
                    assert name == "auto.offset.reset" or hasattr(classes[owner], attribute), name
                elif name.startswith("_"):
                    assert hasattr(confluent_kafka.KafkaError, name), name
                elif name not in ("Consumer", "auto_offset_reset", "on_commit", "TopicPartition"):
                    assert name in classes or hasattr(consumer, name) or hasattr(module, name), name
