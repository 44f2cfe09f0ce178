"""The README's program with a stream runs unchanged, except for the broker's address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spark_runs import span
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def test_the_readmes_stream_reads_all_and_commits(spark: Any, admin: Admin, bootstrap: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "readStream" in block]
    assert '"127.0.0.1:9092"' in code
    create_topic(bootstrap, "flights", partitions=2)
    publish(bootstrap, "flights", numbers(30), partition=1)
    names: dict[str, Any] = {}
    exec(code.replace("127.0.0.1:9092", bootstrap), names)
    rows: list[tuple[int, int]] = []
    writer = names["events"].writeStream.foreachBatch(
        lambda frame, _: rows.extend((row.partition, row.offset) for row in frame.collect())
    )
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(rows) == span(1, 0, 30)
    committed = admin.list_group_offsets("flight-lake")
    assert committed[TopicPartition("flights", 1)].offset == 30
    admin.delete_topics(["flights"])
