"""librdkafka's own C suite with the broker: every test of the allow-list passes.

The suite belongs to librdkafka and is not in this repository. ODRADEK_LIBRDKAFKA_SUITE names a script that builds it
(librdkafka 2.15.1) and runs the tests of ``TESTS`` one by one with ``BOOTSTRAP``. For each test the script prints
a line with ``PASS``, ``FAIL`` or ``SKIP`` and the test's name. FINDINGS.md says why other tests are not in the list.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import RunningBroker

HERE = Path(__file__).parent
LONG_SUITES = (HERE.parents[2] / "docs" / "long-suites.md").read_text()
SUITE = "ODRADEK_LIBRDKAFKA_SUITE"
PIECE = 10
PIECE_S = 1200


def allowed() -> list[str]:
    """The names of the tests that pass, in the suite's order."""
    lines = (line.partition("#")[0].strip() for line in (HERE / "allow-list.txt").read_text().splitlines())
    return [line for line in lines if line]


def pieces() -> list[list[str]]:
    names = allowed()
    return [names[at : at + PIECE] for at in range(0, len(names), PIECE)]


def test_the_allow_list_names_each_test_once() -> None:
    names = allowed()
    assert len(names) == len(set(names)) == 104
    assert "104" in next(row for row in LONG_SUITES.splitlines() if row.startswith("| tests/interop/librdkafka, all |"))


@pytest.mark.slow
@pytest.mark.parametrize("names", pieces(), ids=lambda names: names[0])
def test_the_tests_of_the_allow_list_pass(names: list[str], own_broker: Callable[..., RunningBroker]) -> None:
    script = os.environ.get(SUITE)
    if not script:
        pytest.skip(f"{SUITE} does not name the script that runs librdkafka's suite")
    broker = own_broker(
        group_initial_rebalance_delay_ms="3000",  # Kafka's default, which the suite expects
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    environment = os.environ | {"BOOTSTRAP": broker.bootstrap, "TESTS": " ".join(names), "TEST_TIMEOUT": "300"}
    done = subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, timeout=PIECE_S, check=False
    )
    results = dict(line.split()[1::-1] for line in done.stdout.splitlines() if line[:5] in ("PASS ", "FAIL ", "SKIP "))
    assert results == dict.fromkeys(names, "PASS"), done.stdout[-4000:] + done.stderr[-1000:]
