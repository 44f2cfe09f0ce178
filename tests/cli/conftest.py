"""What the tests of the command line share: the fixtures of the client's tests, and Kafka's own tool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from client.conftest import admin, filled, publish  # noqa: F401  fixtures
from support.jvm import kafka_command

Tool = Callable[..., subprocess.CompletedProcess[str]]
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def kafkas_tool(kafka_cp: str, bootstrap: str) -> Tool:
    """Runs ``kafka-consumer-groups`` of Apache Kafka 4.3 against the broker under test."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*kafka_command(kafka_cp), GROUPS, "--bootstrap-server", bootstrap, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return call
