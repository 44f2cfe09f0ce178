"""docs/consumer-offsets.md holds: its examples run one after the other and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "consumer-offsets.md"
FENCE = re.compile(r"^```(python[ a-z]*|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Example:
    """A program, the line of the page where it begins, what it is to print, and what it needs beside a broker."""

    def __init__(self, line: int, program: str, needs: str) -> None:
        self.line, self.program, self.needs = line, program, needs
        self.expected = ""


def examples() -> list[Example]:
    text = PAGE.read_text()
    found: list[Example] = []
    for match in FENCE.finditer(text):
        kind, body = match.groups()
        if kind == "text":
            found[-1].expected = body
        else:
            found.append(Example(text[: match.start()].count("\n") + 2, body, kind.removeprefix("python").strip()))
    return found


def run(example: Example, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * (example.line - 1) + example.program, str(PAGE), "exec"), namespace)
    return out.getvalue()


@pytest.fixture
def follower_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A scripted cluster whose leader has ten records, of which seven are replicated."""
    monkeypatch.syspath_prepend(str(PAGE.parent.parent / "tests" / "client"))
    from support.scripted import FETCH, ScriptedCluster, fetch_reply

    from odradek.batches.encode import encode_batch
    from odradek.core.effects import Record

    cluster = ScriptedCluster(1)
    for number in range(10):
        data = encode_batch([Record(b"", b"%d" % number)], now_ms=1_700_000_000_000, base_offset=number)
        cluster.log.append((number, data))

    def answer(message: Any, version: int) -> Any:
        asked, replicated = message.topics[0].partitions[0].fetch_offset, cluster.high_watermark
        records = b"".join(data for offset, data in cluster.log if asked <= offset < replicated)
        if not records:
            time.sleep(0.05)  # as a broker that waits for more
        return fetch_reply(cluster, records)

    def replicate(count: int) -> None:
        cluster.high_watermark = count

    cluster.brokers[1].answers[FETCH] = answer
    cluster.replicate = replicate  # type: ignore[attr-defined]
    replicate(7)
    yield cluster
    for one in cluster.brokers.values():
        one.stop()


@pytest.mark.claim(2, 3, 6, 17, 18, 19, 23, 36, 37, 39, 40, 41, 42, 49, 50, 51, 52, 54, 57, 58, 66, 67, 98)
def test_the_examples_print_what_the_page_says(follower_behind: Any) -> None:
    namespace: dict[str, Any] = {"__name__": "page", "cluster": follower_behind}
    try:
        for example in examples():
            if example.needs == "apache":
                continue
            assert run(example, namespace) == example.expected, f"{PAGE.name}, line {example.line}"
    finally:
        for name in ("stuck", "other", "reader", "admin", "broker"):
            if name in namespace:
                with contextlib.suppress(Exception):
                    namespace[name].close()
    sys.stdout.flush()


def test_the_example_that_needs_transactions(tmp_path: Path) -> None:
    from support.brokers import apache_broker

    from bench.apache import Unavailable

    (example,) = [one for one in examples() if one.needs == "apache"]
    first = (
        examples()[0]
        .program.replace("broker = odradek.Broker().start()", "")
        .replace("bootstrap = broker.bootstrap_servers", "bootstrap = apache")
    )
    try:
        broker = apache_broker(tmp_path, {"group.initial.rebalance.delay.ms": "0"})
        broker.format()
        broker.start()
    except Unavailable as error:
        pytest.skip(f"no Apache Kafka: {error}")
    try:
        namespace: dict[str, Any] = {"__name__": "page", "apache": broker.bootstrap}
        exec(first, namespace)
        assert run(example, namespace) == example.expected
        namespace["admin"].close()
    finally:
        broker.stop()
