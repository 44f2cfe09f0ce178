"""docs/replication.md: its programs and commands print what it shows, and its table is that of a real cluster."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers import eventually
from support.pages import DOCS, constant

from odradek.cli.main import run
from odradek.client import Admin
from odradek.testing.cluster import Cluster

PAGE = DOCS / "replication.md"
BLOCKS = re.findall(r"^```(python|sh|text)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ACKS = ("1", "all")
FACTORS, MINIMA, DOWN = (1, 2, 3), (1, 2), (0, 1, 2)
KILLED = (3, 2, 1)
"""The brokers in the order in which they are killed. The first replicas are on the first of them."""
NO_LEADER = "no leader"
READABLE_S = 4.0
"""A record that can be read is read long before. One that is above the high watermark is waited for as long."""


def runs(language: str, body: str, namespace: dict[str, Any]) -> str:
    """Runs a program or a command of the page. Returns what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if language == "python":
            exec(compile(body, str(PAGE), "exec"), namespace)
        else:
            cluster = namespace["cluster"]
            command = re.sub(r"127\.0\.0\.1:909(\d)", lambda port: cluster.address(int(port[1]) - 1), body)
            assert run([*command.split()[1:], "--timeout", "60000"]) == 0, command  # a busy machine
    return out.getvalue()


@pytest.fixture(scope="module")
def session() -> Iterator[dict[str, Any]]:
    """The names of the page's first program: a cluster and some functions."""
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        runs(*BLOCKS[0], namespace)
        yield namespace
    finally:
        if "cluster" in namespace:
            runs(*BLOCKS[-1], namespace)  # closes the cluster


# --- the table ----------------------------------------------------------------------------------------------------


def name_of(factor: int, minimum: int) -> str:
    return f"f{factor}-m{minimum}"


def settled(address: str, topics: list[str], dead: set[int]) -> bool:
    """Whether the cluster knows of the dead brokers: none of them leads or is in sync, and the live ones are."""
    with Admin(address) as admin:
        found = [one for topic in admin.describe_topics(topics).values() for one in topic.partitions]
    return all(
        set(one.isr) == set(one.replicas) - dead or (not set(one.replicas) - dead and one.leader not in KILLED)
        for one in found
    )


def answer(address: str, topic: str, acks: str) -> str:
    """Sends a record. Returns the cell of the table."""
    metadata = AdminClient({"bootstrap.servers": address}).list_topics(topic, timeout=30)
    error = metadata.topics[topic].partitions[0].error
    if error is not None and error.code() == KafkaError.LEADER_NOT_AVAILABLE:
        return NO_LEADER
    answers: list[Any] = []
    producer = Producer({"bootstrap.servers": address, "acks": acks, "message.send.max.retries": 0, "log_level": 0})
    producer.produce(topic, b"", on_delivery=lambda failed, sent: answers.append(failed or sent.offset()))
    assert producer.flush(60) == 0
    (found,) = answers
    if isinstance(found, KafkaError):
        return f"refused: {found.name()}"
    return "accepted" if is_readable(address, topic, found) else "accepted, not readable"


def is_readable(address: str, topic: str, offset: int) -> bool:
    settings = {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(settings | {"auto.offset.reset": "error"})
    partition = TopicPartition(topic, 0, offset)

    def is_below_the_watermark() -> bool:
        try:
            return bool(consumer.get_watermark_offsets(partition, timeout=30)[1] > offset)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE:  # a new leader does not know it yet
                raise
            return False

    try:
        eventually(is_below_the_watermark, within_s=READABLE_S, every_s=0.1)
    except AssertionError:
        return False
    finally:
        consumer.close()
    return True


def table(cluster: Cluster, create: Callable[[str, list[int], int], None]) -> str:
    """Kills two brokers of a cluster of three, the first replicas first, and sends to topics before and between."""
    kinds = list(product(FACTORS, MINIMA))
    topics = [name_of(*kind) for kind in kinds]
    for factor, minimum in kinds:
        create(name_of(factor, minimum), list(KILLED[:factor]), minimum)
    survivor = cluster.address(KILLED[-1])
    cells = {}
    for down in DOWN:
        if down:
            cluster.kill(KILLED[down - 1])
        dead = set(KILLED[:down])
        eventually(lambda dead=dead: settled(survivor, topics, dead), within_s=120, every_s=0.2)
        for kind, acks in product(kinds, ACKS):
            cells[*kind, down, acks] = answer(survivor, name_of(*kind), acks)
    rows = [
        f"| {factor} | {minimum} | {down} | " + " | ".join(cells[factor, minimum, down, acks] for acks in ACKS) + " |"
        for factor, minimum, down in product(FACTORS, MINIMA, DOWN)
    ]
    head = "| `replication.factor` | `min.insync.replicas` | brokers down | acks=1 | acks=all |"
    return "\n".join([head, "|---|---|---|---|---|", *rows]) + "\n"


@pytest.mark.claim(110, by="by clients")
@pytest.mark.claim(111, part="abc", by="by clients")
def test_the_table_is_that_of_a_cluster(session: dict[str, Any]) -> None:
    cluster = session["cluster"]
    try:
        assert table(cluster, session["create"]) in PAGE.read_text()
    finally:
        cluster.start()


# --- the examples -------------------------------------------------------------------------------------------------


@pytest.mark.claim(4, part="ab", by="by clients")
@pytest.mark.claim(106, 109, by="by clients")
def test_the_examples_print_what_the_page_says(session: dict[str, Any]) -> None:
    printed = ""
    for number, (language, body) in enumerate(BLOCKS[1:-1], 1):
        if language == "text":
            assert constant(printed) == constant(body), f"block {number}"
        else:
            printed = runs(language, body, session)
            is_shown = BLOCKS[number + 1 : number + 2] and BLOCKS[number + 1][0] == "text"
            assert is_shown or language == "sh" or not printed, f"block {number} prints {printed}"
