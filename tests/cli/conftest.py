"""Fixtures of the command-line tests: those of the client's tests, and Kafka's own tool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from client.conftest import admin, filled, publish  # noqa: F401  fixtures
from support.jvm import KafkaTools

from odradek.cli import progress_lines
from odradek.cli.progress_lines import LinePace

Tool = Callable[..., subprocess.CompletedProcess[str]]
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(autouse=True)
def pace_of_lines(monkeypatch: pytest.MonkeyPatch) -> LinePace:
    """Commands in this process say nothing about long work: a busy machine would change their output. A test may change
    the pace."""
    pace = LinePace(first_s=600.0)
    monkeypatch.setattr(progress_lines, "PACE", pace)
    return pace


@pytest.fixture
def kafkas_tool(kafka_tools: KafkaTools, bootstrap: str) -> Tool:
    """Runs ``kafka-consumer-groups`` of Apache Kafka 4.3 against the broker under test."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return kafka_tools.run(GROUPS, "--bootstrap-server", bootstrap, *arguments)

    return call
