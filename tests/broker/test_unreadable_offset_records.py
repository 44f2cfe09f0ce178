"""Unreadable records in `__consumer_offsets`: the broker counts and logs them, and loads the other records."""

from __future__ import annotations

import time

import pytest
from support.brokers import Wire, eventually

import odradek
from odradek.batches.encode import encode_batch
from odradek.codecs.offsets_topic import OffsetCommitValue, group_key, offset_key, offset_value
from odradek.core.effects import SimpleRecord
from odradek.core.ids import partition_for_group
from odradek.wire.api_keys import FIND_COORDINATOR, OFFSET_FETCH, PRODUCE


@pytest.mark.claim(87, part="bc")
def test_unreadable_records_are_skipped_and_counted_in_a_warning(group: str) -> None:
    # Apache Kafka serves no group of a partition that has a truncated record of a known type.
    value = offset_value(OffsetCommitValue(5, -1, "", int(time.time() * 1000)))
    cut_off = [SimpleRecord(offset_key(group, "flights", 0), value[:length]) for length in (1, 3, 9)]
    strange = [
        SimpleRecord(b"\x00\x63of a kind to come", b"\x00\x00"),
        SimpleRecord(group_key(group), b"\x00\x03\x00\x01"),
    ]
    good = [SimpleRecord(offset_key(group, "flights", 0), value), SimpleRecord(offset_key(group, "flights", 1), value)]
    with odradek.Broker() as broker:
        broker.create_topic("flights", 2)
        with Wire(broker.bootstrap_servers, client_id="__admin_client") as wire:
            asked = {"key": group, "key_type": 0}
            eventually(lambda: wire.call(FIND_COORDINATOR, 2, asked).error_code == 0, what="a coordinator")
            records = encode_batch([good[0], *cut_off, *strange, good[1]], now_ms=int(time.time() * 1000))
            partition = {"index": partition_for_group(group, 50), "records": records}
            topic = {"name": "__consumer_offsets", "partition_data": [partition]}
            message = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": [topic]}
            reply = wire.call(PRODUCE, 9, message)
            assert reply.responses[0].partition_responses[0].error_code == 0
        broker.stop()
        broker.start()
        with Wire(broker.bootstrap_servers) as wire:
            one = {"group_id": group, "topics": None}

            def fetched() -> dict[int, int] | None:
                (found,) = wire.call(OFFSET_FETCH, 8, {"groups": [one], "require_stable": False}).groups
                if found.error_code != 0:
                    return None
                return {p.partition_index: p.committed_offset for topic in found.topics for p in topic.partitions}

            assert eventually(fetched, what="the group is served") == {0: 5, 1: 5}
        said = broker.log_tail()
    for summary in (
        "2 (offset_commit v4: it is cut off)",
        "1 (value of offset_commit",
        "1 (group_metadata v3: text runs past the end)",
        "1 (key type 99 is unknown)",
    ):
        assert f"records skipped in the load: {summary}" in said
