"""The README's client example runs, and has the shown result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from odradek import Admin, TopicPartition
from odradek.client import NewTopic

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text()


def test_the_client_example(bootstrap: str) -> None:
    (program,) = [text for text in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if "send_batch" in text]
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        namespace: dict[str, Any] = {}
        exec(program.replace("127.0.0.1:9092", bootstrap), namespace)
        table = namespace["table"]
        assert table.column("value").to_pylist() == [b"1", b"2"]
        comment = re.search(r"polled.table\(\)  # (.*)", program)
        assert comment is not None
        assert table.schema.names == comment[1].split(", ")
        assert admin.list_group_offsets("billing")[TopicPartition("orders", 0)].offset == 2
