"""Runs of a transform whose rows are the offsets of the records. It reads a topic with one partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish
from transaction_runs import committed_records

from odradek.cli.main import run as odradek
from odradek.core.errors import OdradekError
from odradek.pipelines import transform

OFFSETS = "CAST(offset AS string)"


class TransformRuns:
    """The transform. 20 records are done if ``is_begun``, and 20 more are there. The group has the topic's name."""

    def __init__(self, bootstrap: str, spark: Any, root: Path, *, is_begun: bool) -> None:
        self.bootstrap, self.spark, self.checkpoint = bootstrap, spark, root / "checkpoint"
        self.topic, self.target = unique("in"), unique("out")
        for name in (self.topic, self.target):
            create_topic(bootstrap, name)
        self.send(20)
        if is_begun:
            self.run()
            self.send(20)

    def send(self, count: int) -> None:
        publish(self.bootstrap, self.topic, numbers(count))

    def run(self, value: str = OFFSETS, **options: str) -> int:
        return transform(
            self.bootstrap, topics=self.topic, group=self.topic, to_topic=self.target, checkpoint=self.checkpoint,
            sql=f"SELECT {value} AS value FROM records", options=options, spark=self.spark,
        ).rows  # fmt: skip

    def fail(self) -> None:
        """A run that fails after it has planned a micro-batch."""
        with pytest.raises(OdradekError, match="a bad value"):
            self.run(f"IF(offset % 20 = 10, CAST(raise_error('a bad value') AS string), {OFFSETS})")

    def refusal(self) -> str:
        with pytest.raises(OdradekError, match="data may have been lost") as failed:
            self.run()
        assert "\n" not in str(failed.value)
        return str(failed.value)

    def reset(self, to: str) -> None:
        line = ["groups", "reset", "-b", self.bootstrap, "--group", self.topic, "--topic", self.topic]
        assert odradek([*line, *to.split(), "--mark", "--create", "--execute"]) == 0

    def rows(self) -> list[int]:
        return sorted(int(record.value) for record in committed_records(self.bootstrap, self.target))
