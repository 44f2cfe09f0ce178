"""The codec of subscriptions and assignments: lenient for group leaders, strict for coordinators, both with limits."""

from __future__ import annotations

import pytest

from odradek.codecs.consumer_protocol import (
    MalformedProtocol,
    ProtocolReader,
    Subscription,
    SubscriptionFields,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    pack_assignment,
    read_subscription,
)
from odradek.core.ids import TopicPartition

OWNED = (TopicPartition("a", 0), TopicPartition("b", 1), TopicPartition("b", 3))
WHOLE = encode_subscription(Subscription(("b", "a"), b"data", OWNED, 7, "east"))
FIELDS = SubscriptionFields(3, ("a", "b"), b"data", [("a", [0]), ("b", [1, 3])], 7, "east")


@pytest.mark.parametrize("strict", [False, True])
def test_both_readers_read_the_same_fields(strict: bool) -> None:
    reader = ProtocolReader(WHOLE + b"of a later version", strict=strict)
    assert read_subscription(reader) == FIELDS
    assert reader.left == len(b"of a later version")


def test_only_the_strict_reader_refuses_missing_fields_and_null_arrays() -> None:
    ends_behind_topics = b"\0\3\0\0\0\1\0\1t"
    assert decode_subscription(ends_behind_topics) == Subscription(("t",))
    null_arrays = b"\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    assert decode_subscription(null_arrays) == Subscription(())
    for data in (ends_behind_topics, null_arrays):
        with pytest.raises(MalformedProtocol):
            read_subscription(ProtocolReader(data, strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_both_readers_refuse_each_cut_within_a_field(strict: bool) -> None:
    assert decode_assignment(encode_assignment(OWNED)) == OWNED
    data = pack_assignment(0, [("topic", [1, 2])])[:-4]
    for cut in range(1, len(data)):
        with pytest.raises(MalformedProtocol):
            _ = ProtocolReader(data[:cut], strict=strict).version() or ProtocolReader(data[2:cut]).partitions()


def test_the_limit_counts_partitions_or_topics_and_partitions() -> None:
    assert read_subscription(ProtocolReader(WHOLE, most=3)) == FIELDS
    with pytest.raises(MalformedProtocol, match="more than 2 partitions"):
        read_subscription(ProtocolReader(WHOLE, most=2))
    assert read_subscription(ProtocolReader(WHOLE, most=7, counts_topics=True)) == FIELDS
    with pytest.raises(MalformedProtocol, match="more than 6 topics and partitions"):
        read_subscription(ProtocolReader(WHOLE, most=6, counts_topics=True))


def test_only_an_assignment_refuses_a_negative_partition() -> None:
    data = pack_assignment(0, [("t", [-1])])
    assert ProtocolReader(data[2:], strict=True).partitions() == [("t", [-1])]
    with pytest.raises(MalformedProtocol, match="partition -1"):
        decode_assignment(data)
