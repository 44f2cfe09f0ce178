"""What an hour of a monitor leaves in a cluster: nothing. The hour passes on the broker's clock."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.metrics_page import page_text, serving
from support.prometheus_text import read_metrics
from support.running_monitor import RunningMonitor

from odradek import Admin, Producer, TopicPartition
from odradek.broker.server import BrokerServer
from odradek.client import NewTopic
from odradek.core.ids import EARLIEST, LATEST, OFFSETS_TOPIC, OffsetAndMetadata

HOUR_MS = 3_600_000
READS = {"ApiVersions", "DescribeConfigs", "Fetch", "ListGroups", "ListOffsets", "Metadata", "OffsetForLeaderEpoch"}
"""The requests of a monitor. None of them changes anything; FindCoordinator would create the offsets topic."""
PAGES = (
    "/", "/group?name=billing", "/topic?name=orders", "/groups/billing/reset", "/changes", "/incidents", "/metrics",
    "/api/v1/status", "/api/v1/groups", "/api/v1/groups/billing", "/api/v1/findings", "/v3/kafka/kafka/consumer",
    "/v3/kafka/kafka/consumer/billing/lag",
)  # fmt: skip
_REQUESTS = re.compile(r"kafka_network_requestmetrics_requests_total")


async def counts(broker: BrokerServer) -> dict[str, float]:
    """The number of requests that the broker has had, by API."""
    found = read_metrics(await page_text(broker))
    return {dict(labels)["request"]: value for (name, labels), value in found.items() if _REQUESTS.fullmatch(name)}


def fill(bootstrap: str) -> None:
    """A topic, and two groups with commits, one of which went back."""
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics([NewTopic("orders", 3)])
        for number in range(50):
            producer.send("orders", b"%d" % number, partition=number % 3)
        producer.flush()
        for group, offset in (("billing", 40), ("billing", 10), ("shipping", 5)):
            places = {TopicPartition("orders", number): OffsetAndMetadata(offset, metadata="m") for number in range(3)}
            admin.alter_group_offsets(group, places)


def state(bootstrap: str) -> tuple[Any, ...]:
    """All topics with the bounds of their logs, and all groups with their commits."""
    with Admin(bootstrap) as admin:
        topics = admin.describe_topics() | admin.describe_topics([OFFSETS_TOPIC], missing_ok=True)
        places = [TopicPartition(name, row.partition) for name, topic in topics.items() for row in topic.partitions]
        logs = [admin.list_offsets(dict.fromkeys(places, when)) if places else {} for when in (EARLIEST, LATEST)]
        groups = {row.group_id: row for row in admin.list_groups()}
        return topics, logs, groups, {name: admin.group_commits(name) for name in groups}


async def an_hour(directory: Path, polls: int, *, is_filled: bool) -> None:
    """``polls``: the number of polls within the hour."""
    async with serving(directory / "broker", offsets_partitions=4) as broker:
        bootstrap = f"127.0.0.1:{broker.address[1]}"
        if is_filled:
            await asyncio.to_thread(fill, bootstrap)
        before, sent_before = await asyncio.to_thread(state, bootstrap), await counts(broker)
        assert (OFFSETS_TOPIC in before[0]) == is_filled
        began_ms = broker.clock.now_ms()
        options = ("--interval", "0.1s", "--data", str(directory / "data"), "--allow", "reset")
        monitor = await asyncio.to_thread(RunningMonitor, bootstrap, *options)
        try:
            polled, asked = 0.0, 0
            while polled < polls or asked < len(PAGES) or broker.clock.now_ms() < began_ms + HOUR_MS:
                broker.clock.advance(HOUR_MS // polls)
                await broker.run_due_alarms()
                code, _ = await asyncio.to_thread(monitor.get, PAGES[asked % len(PAGES)])
                assert code in (200, 404)  # 404: there is no such group
                asked += 1
                sent = await counts(broker)
                polled = sent.get("ListGroups", 0) - sent_before.get("ListGroups", 0)
        finally:
            await asyncio.to_thread(monitor.end)
        own = {name for name, count in sent.items() if count > sent_before.get(name, 0)}
        assert own <= READS
        assert await asyncio.to_thread(state, bootstrap) == before


def run(scenario: Any, limit_s: float) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario, limit_s))


@pytest.mark.parametrize("is_filled", [True, False], ids=["with-groups", "without-the-offsets-topic"])
def test_an_hour_leaves_no_topic_group_commit_or_record(tmp_path: Path, is_filled: bool) -> None:
    run(an_hour(tmp_path, 20, is_filled=is_filled), 120)


@pytest.mark.slow
@pytest.mark.parametrize("is_filled", [True, False], ids=["with-groups", "without-the-offsets-topic"])
def test_as_many_polls_as_in_an_hour_leave_nothing(tmp_path: Path, is_filled: bool) -> None:
    """A poll every ten seconds, as by default."""
    run(an_hour(tmp_path, 360, is_filled=is_filled), 600)
