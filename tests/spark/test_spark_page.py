"""docs/spark.md runs as it stands, but for the broker's address and the directories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from publish import create_topic

from odradek.client.admin import Admin

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_pages_python_runs_in_order(spark: Any, admin: Admin, bootstrap: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    create_topic(bootstrap, "events", partitions=4)
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            code = block.replace("127.0.0.1:9092", bootstrap).replace("/tmp/", f"{tmp_path}/")
            exec(compile(code, str(PAGE), "exec"), names)
    finally:
        admin.delete_topics(["events"])
