"""``odradek.read_table``, the result of ``send``, and what notebooks show of clients and records."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from concurrent.futures import CancelledError
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import odradek
from odradek import aio
from odradek.batches.columns import COLUMNS, DEFAULT_COLUMNS
from odradek.client import (
    Admin,
    GroupIdNotFound,
    IllegalState,
    NewTopic,
    OffsetAndMetadata,
    RequestTimedOut,
    UnknownTopic,
)
from odradek.client.producer.engine import ProducerEngine
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition as Tp
from odradek.lag import describe
from odradek.text.html_table import html_table

FIRST = datetime.fromtimestamp(1_700_000_000, UTC)


def offsets(table: object) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in table.to_pylist():  # type: ignore[attr-defined]
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


# --- read_table -----------------------------------------------------------------------------------------------------


def test_a_topic_is_read_in_one_line(bootstrap: str, filled: str) -> None:
    table = odradek.read_table(filled, bootstrap)
    assert offsets(table) == {0: list(range(10)), 1: list(range(10))}
    assert table["value"].to_pylist()[:2] == [b"0:0", b"0:1"]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"start": 7}, {0: [7, 8, 9], 1: [7, 8, 9]}),
        ({"start": -2}, {0: [8, 9], 1: [8, 9]}),
        ({"start": -3, "end": -1}, {0: [7, 8], 1: [7, 8]}),
        ({"start": {1: 8}}, {1: [8, 9]}),
        ({"start": {1: 3}, "end": {1: 5}}, {1: [3, 4]}),
        ({"end": {0: 2}}, {0: [0, 1]}),
        ({"start": FIRST + timedelta(milliseconds=8)}, {0: [8, 9], 1: [8, 9]}),
        ({"end": FIRST + timedelta(milliseconds=1)}, {0: [0], 1: [0]}),
        ({"start": FIRST + timedelta(days=9)}, {}),
        ({"start": 50}, {}),
        ({"start": "latest"}, {}),
        ({"start": 5, "end": 3}, {}),
    ],
)  # fmt: skip
def test_bounds(bootstrap: str, filled: str, bounds: dict[str, object], expected: dict[int, list[int]]) -> None:
    assert offsets(odradek.read_table(filled, bootstrap, **bounds)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", ["start_group", "end_group"])
def test_a_group_that_does_not_exist_is_no_bound(bootstrap: str, filled: str, admin: Admin, bound: str) -> None:
    """Once, a slip in the group's name read the whole topic without a word."""
    group = f"{filled}-readers"
    admin.alter_group_offsets(group, {Tp(filled, 0): OffsetAndMetadata(8)})
    slip = f"{group}x"
    with pytest.raises(GroupIdNotFound, match=rf"group {slip} not found \(did you mean {group}\?\)$"):
        odradek.read_table(filled, bootstrap, **{bound: slip})  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic, match=rf"unknown topic {filled}x \(did you mean {filled}\?\)$"):
        odradek.read_table(f"{filled}x", bootstrap)
    assert offsets(odradek.read_table(filled, bootstrap, start_group=group)) == {0: [8, 9], 1: list(range(10))}


def test_headers_that_were_not_read_are_not_empty(bootstrap: str, filled: str) -> None:
    """Once, ``headers`` of a polled record was an empty tuple, whatever headers the record had."""
    for columns, is_read in ((DEFAULT_COLUMNS, False), (COLUMNS, True)):
        with odradek.Consumer(bootstrap, columns=columns, auto_offset_reset="earliest") as consumer:
            consumer.assign([Tp(filled, 0)])
            record = next(iter(consumer.poll(20).records()))
        if is_read:
            assert len(record.headers) == 1
            continue
        for use in (list, len, bool, dict, lambda headers: headers[0], lambda headers: ("a", b"") in headers):
            with pytest.raises(ConfigError, match=r"^headers were not read: add headers to the consumer's setting col"):
                use(record.headers)
        assert "headers=<not read>" in repr(record)
        again = pickle.loads(pickle.dumps(record))
        assert (again, again.headers is record.headers) == (record, True)


def test_a_table_without_records_has_the_columns(bootstrap: str, filled: str) -> None:
    table = odradek.read_table(filled, bootstrap, start="latest", columns=("offset", "value", "headers"))
    assert (table.num_rows, table.schema.names) == (0, ["offset", "value", "headers"])


def test_a_group_divides_a_topic(bootstrap: str, filled: str, admin: Admin, group: str) -> None:
    """What the group has read and what it has still to read are all records, each once."""
    admin.alter_group_offsets(group, {Tp(filled, 0): OffsetAndMetadata(4)})
    assert offsets(odradek.read_table(filled, bootstrap, start_group=group)) == {
        0: list(range(4, 10)), 1: list(range(10)),
    }  # fmt: skip
    assert offsets(odradek.read_table(filled, bootstrap, end_group=group)) == {0: list(range(4))}


def test_the_log_start_counts_after_a_deletion(bootstrap: str, filled: str, admin: Admin, group: str) -> None:
    admin.alter_group_offsets(group, {Tp(filled, 0): OffsetAndMetadata(2), Tp(filled, 1): OffsetAndMetadata(9)})
    admin.delete_records({Tp(filled, 0): 6})
    assert offsets(odradek.read_table(filled, bootstrap, start_group=group)) == {0: [6, 7, 8, 9], 1: [9]}
    assert offsets(odradek.read_table(filled, bootstrap, end=7)) == {0: [6], 1: list(range(7))}


@pytest.mark.parametrize(
    ("bounds", "error", "text"),
    [
        ({"start": "first"}, ValueError, "expected earliest, latest, an offset, a datetime or a mapping"),
        ({"start": datetime(2026, 1, 1)}, ValueError, "has no time zone"),
        ({"start": 1_700_000_000_000}, ValueError, r"the highest end is 10\); a time is a datetime with a time zone"),
        ({"start": {0: -1}}, ValueError, "an offset is 0 or more"),
        ({"start": 1.5}, TypeError, "start: expected"),
        ({"start": 1, "start_group": "g"}, ValueError, "start and start_group are both set"),
        ({"end": {9: 1}}, UnknownTopic, "has no partition 9"),
        ({"columns": ["key", "velue"]}, ValueError, "unknown column 'velue'"),
        ({"columns": "value"}, TypeError, "columns: expected a list of names, not 'value'"),
        ({"strat": 3}, ConfigError, r"read_table\(\) has no setting strat \(did you mean start\?\)"),
    ],
)  # fmt: skip
def test_an_invalid_bound_is_named(
    bootstrap: str, filled: str, bounds: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        odradek.read_table(filled, bootstrap, **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "warned"),
    [
        (11, ["start 11 of {0}-0 is outside the log, which ends at 10", "start 11 of {0}-1 is outside the log"]),
        (10, []),  # the end itself: nothing new has come
        (-20, []),
        ({0: 12, 1: 3}, ["start 12 of {0}-0 is outside the log, which ends at 10: nothing is read"]),
        (datetime(2100, 1, 1, tzinfo=UTC), []),  # no record is that new yet
    ],
)
def test_a_start_behind_the_end_has_a_warning(bootstrap: str, filled: str, start: Any, warned: list[str]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        odradek.read_table(filled, bootstrap, start=start)
    assert [one.filename for one in seen] == [__file__] * len(warned), "the line of the caller"
    for one, text in zip(seen, warned, strict=True):
        assert str(one.message).startswith(text.format(filled))


def test_an_offset_that_some_partitions_have_needs_no_warning(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    with odradek.Producer(bootstrap) as producer:
        producer.send(topic, b"1", partition=0).result()
        producer.send(topic, b"2", partition=0).result()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert offsets(odradek.read_table(topic, bootstrap, start=1)) == {0: [1]}


def test_a_group_behind_the_end_has_a_warning(bootstrap: str, filled: str, admin: Admin, group: str) -> None:
    """Its commit is of a former topic of this name, or wrong: an empty table does not say that nothing is to do."""
    admin.alter_group_offsets(group, {Tp(filled, 0): OffsetAndMetadata(40), Tp(filled, 1): OffsetAndMetadata(10)})
    text = f"^the committed offset of group {group} 40 of {filled}-0 is outside the log, which ends at 10: nothing is"
    with pytest.warns(UserWarning, match=text) as seen:
        odradek.read_table(filled, bootstrap, start_group=group)
    assert len(seen) == 1


def test_read_committed_ends_before_an_open_transaction(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    with odradek.Producer(bootstrap, transactional_id=f"{topic}-id") as producer:
        producer.init_transactions()
        with producer.transaction():
            assert producer.send(topic, b"committed").result().offset == 0
        producer.begin_transaction()
        assert producer.send(topic, b"open").result().offset == 2
        assert offsets(odradek.read_table(topic, bootstrap)) == {0: [0, 2]}
        assert offsets(odradek.read_table(topic, bootstrap, isolation_level="read_committed")) == {0: [0]}
        producer.abort_transaction()
    assert offsets(odradek.read_table(topic, bootstrap, isolation_level="read_committed")) == {0: [0]}


# --- the result of send ---------------------------------------------------------------------------------------------


def test_send_returns_the_offset(bootstrap: str, filled: str) -> None:
    with odradek.Producer(bootstrap, linger_ms=20) as producer:
        sent = [producer.send(filled, b"v", partition=1) for _ in range(3)]
        assert (sent[0].topic, sent[0].partition) == (filled, 1)
        assert [one.result(20) for one in sent] == [(filled, 1, 10), (filled, 1, 11), (filled, 1, 12)]
        assert all(one.done() for one in sent)
        assert sent[2].exception() is None
        assert repr(sent[2]) == f"<Delivery to {filled}-1: offset 12>"


def test_a_record_that_waits_and_a_closed_producer(
    bootstrap: str, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deliver_never(*given: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ProducerEngine, "_deliver", deliver_never)
    producer = odradek.Producer(bootstrap, linger_ms=60_000)
    waits = producer.send(filled, b"v", partition=0)
    assert (waits.done(), repr(waits)) == (False, f"<Delivery to {filled}-0: waits>")
    with pytest.raises(RequestTimedOut, match=f"{filled}-0: the record was not delivered within 0.05 s"):
        waits.result(0.05)
    producer._sender.cancel()  # as if the process ended
    with pytest.raises(IllegalState, match="the Producer was closed first"):
        waits.result()
    with pytest.raises(IllegalState):
        waits.exception()
    with pytest.raises(CancelledError):
        producer.close()


def test_a_record_that_is_given_up_raises_its_error(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, {"max.message.bytes": "1000"})])
    with odradek.Producer(bootstrap) as producer:
        failed = producer.send(topic, b"x" * 5000, on_delivery=lambda metadata, error: None)
        assert "MESSAGE_TOO_LARGE" in str(failed.exception(20))
        with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
            failed.result()
        assert repr(failed).startswith(f"<Delivery to {topic}-0: failed: MESSAGE_TOO_LARGE")


def test_a_delivery_does_not_keep_the_records_of_its_batch(bootstrap: str, filled: str) -> None:
    with odradek.Producer(bootstrap) as producer:
        sent = producer.send(filled, b"x" * 100_000)
        sent.result(20)
        assert len(sent._batch.body) == 0


def test_the_offset_is_unknown_without_acks(bootstrap: str, filled: str) -> None:
    with odradek.Producer(bootstrap, acks="0", enable_idempotence=False) as producer:
        sent = producer.send(filled, b"v")
        assert sent.result(20).offset == -1
        assert repr(sent).endswith(": sent>")


# --- what notebooks show --------------------------------------------------------------------------------------------


def test_the_text_of_clients(bootstrap: str, filled: str, group: str) -> None:
    admin = Admin(bootstrap)
    assert repr(admin) == f"<Admin of {bootstrap}>"
    admin.close()
    assert repr(admin) == "<Admin, closed>"
    with odradek.Producer(bootstrap, transactional_id="t-1") as producer:
        assert repr(producer) == f"<Producer to {bootstrap} with transactional.id 't-1': 0 bytes not delivered>"
    assert repr(producer) == "<Producer, closed>"
    with odradek.Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        assert repr(consumer) == f"<Consumer of group '{group}' at {bootstrap}: no topics>"
        consumer.subscribe([filled])
        assert repr(consumer).endswith(f"subscribed to {filled}, without partitions>")
        consumer.unsubscribe()
        consumer.assign([Tp(filled, 0), Tp(filled, 1)])
        consumer.seek(Tp(filled, 0), 2)  # without this, the loop may have found the start by now, or not
        consumer.seek(Tp(filled, 1), 4)
        assert repr(consumer).endswith(f"{filled}-0 at 2, {filled}-1 at 4>")
    assert repr(consumer) == "<Consumer, closed>"


def test_the_text_of_clients_for_a_loop(bootstrap: str, filled: str) -> None:
    async def texts() -> list[str]:
        consumer, producer, admin = aio.Consumer(bootstrap), aio.Producer(bootstrap), aio.Admin(bootstrap)
        found = [repr(consumer), repr(producer), repr(admin)]
        await producer.send_and_wait(filled, b"v")
        await consumer.assign([Tp(filled, 0)])
        found += [repr(consumer), repr(producer)]
        for one in (consumer, producer, admin):
            await one.close()
        return [*found, repr(consumer), repr(producer), repr(admin)]

    assert asyncio.run(texts()) == [
        f"<Consumer at {bootstrap}: no topics>", f"<Producer to {bootstrap}: 0 bytes not delivered>",
        f"<Admin of {bootstrap}>", f"<Consumer at {bootstrap}: {filled}-0>",
        f"<Producer to {bootstrap}: 0 bytes not delivered>",
        "<Consumer, closed>", "<Producer, closed>", "<Admin, closed>",
    ]  # fmt: skip


def test_the_text_and_the_table_of_a_poll(bootstrap: str, filled: str) -> None:
    with odradek.Consumer(bootstrap) as consumer:
        consumer.assign([Tp(filled, 0)])
        assert repr(consumer.poll(0)) == "<Polled: no records>"
        consumer.seek(Tp(filled, 0), 0)
        polled = consumer.poll(20)
        while polled.num_rows < 10:
            consumer.seek(Tp(filled, 0), 0)
            polled = consumer.poll(20)
        assert repr(polled) == f"<Polled: 10 records, offsets {filled}-0 0 to 9>"
        assert f"<caption>10 records of {filled}</caption>" in polled._repr_html_()
        assert '<td style="text-align:left">0:9</td>' in polled._repr_html_()


def test_the_table_of_a_groups_lag(bootstrap: str, filled: str, admin: Admin, group: str) -> None:
    admin.alter_group_offsets(group, {Tp(filled, 0): 4})
    page = describe(admin, group)._repr_html_()
    assert f"<caption>group {group} (Empty)</caption>" in page
    assert '<td style="text-align:right">6</td><td>-</td>' in page


def test_an_html_table_shows_foreign_values_as_text() -> None:
    rows = [(b"<script>", None), (b"\xff\x00", "a\nb"), (("é" * 200).encode(), 7), (b"\xc3", -1)]
    page = html_table("<b>", ("a&b",), rows, more=1_200)
    assert "<script>" not in page
    assert "<caption>&lt;b&gt;</caption>" in page
    assert "<th>a&amp;b</th>" in page
    assert ">0xff00</td>" in page
    assert ">0xc3</td>" in page
    assert ">a\\nb</td>" in page
    assert f">{'é' * 79}…</td>" in page
    assert "… and 1,200 more" in page


def test_partitions_are_no_part_of_the_name(bootstrap: str, filled: str) -> None:
    for name in (f"{filled}:0", f"{filled},other"):
        with pytest.raises(ValueError, match=r"the name of one topic is expected; start=\{0: 0\} chooses partitions"):
            odradek.read_table(name, bootstrap)
    assert odradek.read_table(filled, bootstrap, start=10).num_rows == 0, "the end itself is where new records come"


def test_a_topic_has_a_name() -> None:
    with pytest.raises(ValueError, match="topic='': a topic's name cannot be empty"):
        odradek.read_table("", "127.0.0.1:1")


@pytest.mark.parametrize("name", ["group", "group_id"])
def test_a_group_without_a_side_names_both_sides(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"no setting {name}: start_group starts at .* of a group, end_group ends"):
        odradek.read_table("t", "127.0.0.1:1", **{name: "g"})  # type: ignore[arg-type]
