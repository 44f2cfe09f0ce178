"""A micro-batch that an earlier version has planned does not say after which one. Laid over a checkpoint that has gone
on otherwise, it began a partition behind records that no run had read: they were never in the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import plain_engine
from support.brokers import unique
from support.publish import create_topic, numbers, publish
from table_rows import KINDS, Rows, begun_table, plan, rows_of

from odradek import Admin
from odradek.core.ids import TopicPartition
from odradek.pipelines import adopt, ingest
from odradek.pipelines.commit.state import TableRefused


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in plain_engine.replacements():
        monkeypatch.setattr(owner, name, value)


def lay_over(checkpoint: Path, bootstrap: str, topics: dict[str, tuple[int, int]], *, follows: bool) -> None:
    """Writes the next micro-batch as an earlier version did: the ends of these topics, and where they begin."""
    offsets = checkpoint / "offsets"
    newest = max(int(path.name) for path in offsets.iterdir() if path.name.isdecimal())
    version, settings, line = (offsets / str(newest)).read_text().splitlines()
    offset = json.loads(line)
    extra = offset["$odradek"]
    with Admin(bootstrap) as admin:
        ids = {name: str(one.topic_id) for name, one in admin.describe_topics(sorted(topics)).items()}
    extra["ids"] |= ids
    known = {name for name in offset if name != "$odradek"}
    extra["from"] = {name: {"0": start} for name, (start, _) in topics.items() if name not in known}
    offset |= {name: {"0": end} for name, (_, end) in topics.items()}
    if not follows:
        del extra["after"]
    (offsets / str(newest + 1)).write_text("\n".join([version, settings, json.dumps(offset)]))


def offsets_in(table: Path, kind: str) -> list[tuple[str, int]]:
    import deltalake
    import pyarrow.dataset as ds

    rows = deltalake.DeltaTable(table).to_pyarrow_dataset() if kind == "delta" else ds.dataset(table, format="parquet")
    return sorted((row["topic"], row["offset"]) for row in rows.to_table(columns=["topic", "offset"]).to_pylist())


@KINDS
def test_a_plan_of_an_earlier_version_that_begins_a_partition_is_refused(
    kind: str, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    other, table = unique("u"), tmp_path / "t"
    for name in (topic, other):
        create_topic(bootstrap, name)
    publish(bootstrap, topic, numbers(10))
    publish(bootstrap, other, numbers(16))
    job: dict[str, Any] = {"group": group, "output": table, "table_format": kind}
    assert ingest(bootstrap, topics=topic, **job).rows == 10
    publish(bootstrap, topic, numbers(5))
    lay_over(table / "_odradek/checkpoint", bootstrap, {topic: (10, 15), other: (10, 16)}, follows=False)
    with pytest.raises(TableRefused, match=rf"micro-batch 1 .* begins {other}-0 at offset 10: it is not known") as said:
        ingest(bootstrap, topics=[topic, other], **job)
    assert "\n" not in str(said.value)
    assert "odradek pipeline adopt" in str(said.value)
    assert offsets_in(table, kind) == [(topic, at) for at in range(10)]
    with Admin(bootstrap) as admin:
        assert {tp.topic for tp in admin.list_group_offsets(group)} == {topic}
    adopt(bootstrap, group=group, output=table, execute=True)
    ingest(bootstrap, topics=[topic, other], **job)
    wanted = [(topic, at) for at in range(15)] + [(other, at) for at in range(16)]
    assert offsets_in(table, kind) == sorted(wanted)


@KINDS
def test_a_plan_of_an_earlier_version_that_begins_nothing_goes_on(
    kind: str, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    job: dict[str, Any] = {"group": group, "output": tmp_path / "t", "table_format": kind, "topics": topic}
    assert ingest(bootstrap, **job).rows == 10
    publish(bootstrap, topic, numbers(5))
    lay_over(tmp_path / "t/_odradek/checkpoint", bootstrap, {topic: (10, 15)}, follows=False)
    assert ingest(bootstrap, **job).rows == 5
    assert offsets_in(tmp_path / "t", kind) == [(topic, at) for at in range(15)]


@KINDS
def test_the_commit_of_each_format_refuses_it(kind: str, tmp_path: Path) -> None:
    """The tables of Iceberg are in ``test_iceberg_table``."""
    import dataclasses

    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    later = dataclasses.replace(plan(1), unlinked={TopicPartition("u", 0): 10})
    with pytest.raises(TableRefused, match="begins u-0 at offset 10"):
        table.add(Rows(10), later)
    assert rows_of(tmp_path) == 10
    table.add(Rows(10), plan(1))
    assert table.add(Rows(10), later).rows == 10, "the table has it"
    assert rows_of(tmp_path) == 20
