"""docs/spark.md runs unchanged, except for the broker's address and the directories."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.brokers import RunningBroker
from support.publish import create_topic

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_pages_python_runs_in_order(spark: Any, own_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    """Uses a broker of its own: on a shared one, clients of earlier tests could create the deleted topic again."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    bootstrap = own_broker().bootstrap
    create_topic(bootstrap, "events", partitions=4)
    names: dict[str, Any] = {}
    for block in blocks:
        code = block.replace("127.0.0.1:9092", bootstrap).replace("/tmp/", f"{tmp_path}/")
        exec(compile(code, str(PAGE), "exec"), names)
