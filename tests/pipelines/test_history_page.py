"""docs/offset-history.md: its Python runs unchanged and prints the shown output."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from support.publish import create_topic, numbers, publish

import odradek
from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition

PAGE = Path(__file__).resolve().parents[2] / "docs" / "offset-history.md"


def test_the_python_of_the_page_prints_the_shown_output() -> None:
    ((program, expected),) = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        create_topic(broker.bootstrap_servers, "orders")
        publish(broker.bootstrap_servers, "orders", numbers(100))
        for offset in (70, 20):
            admin.alter_group_offsets("billing", {TopicPartition("orders", 0): OffsetAndMetadata(offset)})
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program.replace("127.0.0.1:9092", broker.bootstrap_servers), str(PAGE), "exec"), {})
    assert printed.getvalue() == expected
