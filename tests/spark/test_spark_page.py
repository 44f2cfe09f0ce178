"""docs/spark.md runs unchanged, except for the broker's address and the directories."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.brokers import RunningBroker
from support.publish import create_topic
from support.spark_connector import add_connector

from bench.apache import Unavailable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_pages_python_runs_in_order(spark: Any, own_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    """Uses a broker of its own: on a shared one, clients of earlier tests could create the deleted topic again."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    bootstrap = own_broker().bootstrap
    create_topic(bootstrap, "events", partitions=4)
    names: dict[str, Any] = {}
    has_connector = _add_connector(spark)
    for block in blocks:
        if 'format("kafka")' in block and not has_connector:
            continue
        code = block.replace("127.0.0.1:9092", bootstrap).replace("/tmp/", f"{tmp_path}/")
        exec(compile(code, str(PAGE), "exec"), names)


def _add_connector(spark: Any) -> bool:
    """Adds Spark's own Kafka source. Returns False, and prints why, if its jars are not available."""
    try:
        add_connector(spark)
    except Unavailable as error:
        print(f"the examples with Spark's own Kafka source are not run: {error}")
        return False
    return True
