"""A partition that a query did not read for a while continues at the table's offset, whatever the group has."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from ingest_runs import committed, delta, expected, parquet, record_ids
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.client.errors import UnknownTopic
from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines import adopt, ingest
from odradek.pipelines.commit import logs, state
from odradek.pipelines.commit.operations import TableChange
from odradek.pipelines.commit.state import TableState
from odradek.pipelines.delta import state as delta_state
from odradek.pipelines.queries import QueryFailed
from odradek.spark.offsets.source_offset import SourceOffset

READ = {"parquet": parquet, "delta": delta}
ON_SPARK = pytest.mark.parametrize("engine", ["spark"], indirect=True)


class TwoTopics:
    """A table of two topics. The query does not read ``b`` for a while: it is not subscribed, or is deleted."""

    def __init__(self, kind: str, root: Path, bootstrap: str, admin: Admin, group: str, engine: Any) -> None:
        self.kind, self.output, self.bootstrap, self.admin = kind, root / "t", bootstrap, admin
        self.group, self._spark = group, engine
        self.a, self.b = unique("a"), unique("b")
        for topic in (self.a, self.b):
            create_topic(bootstrap, topic, 1)
            publish(bootstrap, topic, numbers(20))

    def run(self, *topics: str, fails: bool = False) -> int:
        return ingest(
            self.bootstrap, topics=topics, group=self.group, output=self.output, table_format=self.kind,
            writer="workers", options={"failOnDataLoss": str(fails).lower()}, spark=self._spark,
        ).rows  # fmt: skip

    def publish(self, topic: str) -> None:
        publish(self.bootstrap, topic, numbers(10))

    def forget_commit(self) -> None:
        """As when the group's offset of ``b`` has expired."""
        self.admin.delete_group_offsets(self.group, [TopicPartition(self.b, 0)])

    def rows(self) -> Any:
        return record_ids(READ[self.kind](self.output))


@pytest.fixture(params=["parquet", "delta"])
def two(
    request: pytest.FixtureRequest, tmp_path: Path, bootstrap: str, admin: Admin, group: str, engine: Any
) -> TwoTopics:
    return TwoTopics(request.param, tmp_path, bootstrap, admin, group, engine)


def test_it_continues_at_the_table_s_offset(two: TwoTopics) -> None:
    """Before, the records of ``b`` came twice, because the query began at the group's commit or at the log start."""
    assert two.run(two.a, two.b) == 40
    two.publish(two.a)
    assert two.run(two.a) == 10
    assert two.run(two.a) == 0
    two.publish(two.b)
    two.forget_commit()
    assert two.run(two.a, two.b) == 10
    two.publish(two.a)
    assert two.run(two.a) == 10
    two.publish(two.b)
    two.admin.alter_group_offsets(two.group, {TopicPartition(two.b, 0): 5})
    assert two.run(two.a, two.b) == 10
    assert two.rows() == expected(two.admin, two.a, two.b)
    assert committed(two.admin, two.group) == {TopicPartition(two.a, 0): 40, TopicPartition(two.b, 0): 40}


@pytest.mark.slow
@ON_SPARK
def test_a_new_topic_of_the_same_name_is_a_loss_and_starts_at_its_start(two: TwoTopics) -> None:
    assert two.run(two.a, two.b) == 40
    two.publish(two.a)
    assert two.run(two.a) == 10
    two.admin.delete_topics([two.b])
    create_topic(two.bootstrap, two.b, 1)
    publish(two.bootstrap, two.b, numbers(50))
    with pytest.raises(QueryFailed, match=f"{two.b}-0: it was read up to offset 20, but its topic was deleted and"):
        two.run(two.a, two.b, fails=True)
    assert two.run(two.a, two.b) == 50
    assert two.rows() == expected(two.admin, two.a, two.b) + Counter({(two.b, 0, at): 1 for at in range(20)})


@pytest.mark.slow
def test_a_deleted_topic_that_is_created_again_while_it_is_read(two: TwoTopics) -> None:
    """The run that does not find the topic drops it, and the next one finds another topic."""
    assert two.run(two.a, two.b) == 40
    two.admin.delete_topics([two.b])
    create_topic(two.bootstrap, f"{two.b}2", 1)
    two.publish(two.a)
    with pytest.raises(UnknownTopic, match=two.b):
        two.run(two.a, two.b)
    assert two.run(two.a, f"{two.b}2") == 10
    create_topic(two.bootstrap, two.b, 1)
    two.publish(two.b)
    assert two.run(two.a, two.b) == 10
    assert two.rows()[two.b, 0, 5] == 2, "offset 5 of both topics"


@pytest.mark.slow
@ON_SPARK
def test_deleted_records_are_a_loss(two: TwoTopics) -> None:
    assert two.run(two.a, two.b) == 40
    two.publish(two.a)
    assert two.run(two.a) == 10
    two.publish(two.b)
    two.admin.delete_records({TopicPartition(two.b, 0): 25})
    with pytest.raises(QueryFailed, match=f"{two.b}-0: offsets 20 to 24 are lost"):
        two.run(two.a, two.b, fails=True)
    assert two.run(two.a, two.b) == 5
    assert sum(two.rows().values()) == 55


def test_a_new_query_continues_where_an_earlier_one_stopped(two: TwoTopics) -> None:
    """The new query reads ``b`` only later. Before, the table had forgotten its offset."""
    assert two.run(two.a, two.b) == 40
    adopted = {"group": two.group, "output": two.output, "execute": True}
    shutil.rmtree(two.output / "_odradek" / "checkpoint")
    adopt(two.bootstrap, **adopted)
    two.publish(two.a)
    assert two.run(two.a) == 10
    two.publish(two.b)
    two.forget_commit()
    with pytest.raises((StorageError, QueryFailed), match=rf"has read {two.b}-0 up to offset 20, .* continues at 0\. "):
        two.run(two.a, two.b)
    assert adopt(two.bootstrap, **adopted).offsets[TopicPartition(two.b, 0)] == 20
    assert two.run(two.a, two.b) == 10
    assert two.rows() == expected(two.admin, two.a, two.b)


@pytest.mark.slow
def test_rows_that_a_user_has_removed_do_not_come_back_with_their_topic(two: TwoTopics) -> None:
    """Neither rows nor commits name the topic. Before, an adoption did not find its offset in a Delta table."""
    assert two.run(two.a, two.b) == 40
    if two.kind == "delta":
        DeltaTable(two.output).delete(f"topic = '{two.b}'")
    else:
        for path in two.output.glob("*.parquet"):
            found = pq.read_table(path)
            pq.write_table(found.filter(pc.field("topic") == two.a), path)
    two.forget_commit()
    adopted = {"group": two.group, "output": two.output, "execute": True}
    shutil.rmtree(two.output / "_odradek" / "checkpoint")
    assert adopt(two.bootstrap, **adopted).offsets[TopicPartition(two.b, 0)] == 20
    two.publish(two.b)
    assert two.run(two.a, two.b) == 10
    assert two.rows()[two.b, 0, 5] == 0


@pytest.mark.slow
def test_adoption_notes_a_topic_that_is_deleted(two: TwoTopics) -> None:
    assert two.run(two.a, two.b) == 40
    two.admin.delete_topics([two.b])
    found = adopt(two.bootstrap, group=two.group, output=two.output, execute=True)
    assert found.offsets == {TopicPartition(two.a, 0): 20, TopicPartition(two.b, 0): 20}
    two.publish(two.a)
    assert two.run(two.a) == 10
    create_topic(two.bootstrap, two.b, 1)
    two.publish(two.b)
    assert two.run(two.a, two.b) == 10


@contextlib.contextmanager
def earlier_version(two: TwoTopics) -> Iterator[None]:
    """Writes the table, and at the end the checkpoint, as an earlier version: without partitions that are not read."""

    def numbers_of(change: TableChange, base: TableState, *, is_whole: bool) -> Mapping[str, int]:
        plan = change.plan
        assert plan is not None
        found = {
            name: number
            for name, number in real(change, base, is_whole=is_whole).items()
            if not name.startswith("odradek-at")
        }
        return found | {f"{plan.query}/at/{tp.topic}/{tp.partition}": at for tp, at in plan.offsets.items()}

    def json_of(found: TableState) -> dict[str, Any]:
        return {name: value for name, value in state.to_json(found).items() if name != "whole"}

    real = delta_state._numbers_of
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SourceOffset, "offsets", property(lambda self: self.positions))
        patched.setattr(state, "_with_former", lambda new, old: new)
        patched.setattr(logs, "to_json", json_of)
        patched.setattr(delta_state, "_numbers_of", numbers_of)
        yield
    offsets = two.output / "_odradek" / "checkpoint" / "offsets"
    newest = offsets / str(max(int(path.name) for path in offsets.iterdir() if path.name.isdecimal()))
    *first, last = newest.read_text().splitlines()
    content = json.loads(last)
    del content["$odradek"]["absent"]
    newest.write_text("\n".join([*first, json.dumps(content)]))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("is_known", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_table_of_an_earlier_version_goes_on_or_says_why_not(two: TwoTopics, *, is_known: bool) -> None:
    """An earlier version did not note absent partitions. The rows of the table show where they end."""
    with earlier_version(two):
        assert two.run(two.a, two.b) == 40
        two.publish(two.a)
        assert two.run(two.a) == 10
    two.publish(two.b)
    if is_known:
        assert two.run(two.a, two.b) == 10
    else:
        two.forget_commit()
        with pytest.raises((StorageError, QueryFailed), match=rf"{two.b}-0 up to offset \d\d, .* at 0\. "):
            two.run(two.a, two.b)
        adopt(two.bootstrap, group=two.group, output=two.output, execute=True)
        assert two.run(two.a, two.b) == 10
    assert two.rows() == expected(two.admin, two.a, two.b)
