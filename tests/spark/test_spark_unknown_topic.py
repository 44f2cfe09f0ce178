"""The error of a query about a topic that does not exist names the most similar topic."""

from __future__ import annotations

import pytest

import odradek
from odradek.client import NewTopic, UnknownTopic
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.options import parse_options


def test_the_most_similar_topic_is_named() -> None:
    with odradek.Broker() as broker:
        with odradek.Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("events"), NewTopic("payments")])

        def partitions(topics: str, *, strict: bool) -> list[odradek.TopicPartition]:
            options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topics}
            lookups = Lookups(parse_options(options, streaming=False))
            try:
                return lookups.partitions(strict=strict)
            finally:
                lookups.close()

        with pytest.raises(UnknownTopic, match=r"unknown topic evnets \(did you mean events\?\)$") as caught:
            partitions("evnets", strict=True)
        assert caught.value.names == ("evnets",)
        with pytest.raises(UnknownTopic, match=r"unknown topic zzz$"):
            partitions("zzz", strict=True)
        assert partitions("events,zzz", strict=False) == [odradek.TopicPartition("events", 0)]
