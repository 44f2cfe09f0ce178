"""A partition that a query did not read for a while continues at the table's offset, whatever the group has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ingest_runs import committed, delta, expected, parquet, record_ids
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition
from odradek.pipelines import ingest

READ = {"parquet": parquet, "delta": delta}


class TwoTopics:
    """A table of two topics. The query does not read ``b`` for a while: it is not subscribed, or is deleted."""

    def __init__(self, kind: str, root: Path, bootstrap: str, admin: Admin, group: str, spark: Any) -> None:
        self.kind, self.output, self.bootstrap, self.admin = kind, root / "t", bootstrap, admin
        self.group, self._spark = group, spark
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
    request: pytest.FixtureRequest, tmp_path: Path, bootstrap: str, admin: Admin, group: str, spark: Any
) -> TwoTopics:
    found = TwoTopics(request.param, tmp_path, bootstrap, admin, group, spark)
    assert found.run(found.a, found.b) == 40
    return found


def test_it_continues_at_the_table_s_offset(two: TwoTopics) -> None:
    """Before, the records of ``b`` came twice, because the query began at the group's commit or at the log start."""
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
