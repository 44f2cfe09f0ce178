"""docs/kafka-in-pytest.md is correct: its tests pass, in several processes, and its settings have an effect."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import DOCS

PAGE = (DOCS / "kafka-in-pytest.md").read_text()
TEST, OFFSETS_TEST, NAMES_TEST, CONFIG_FIXTURE, CLUSTER_TEST, OWN_FIXTURE = re.findall(
    r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
SETTINGS, SHARED = re.findall(r"^```ini\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ASSERTIONS = """

def test_the_broker_has_the_settings(odradek_broker):
    with odradek.Admin(odradek_broker.bootstrap_servers) as admin:
        found = {one.name: one.value for one in admin.describe_configs("broker", ["1"])["1"]}
    assert found["num.partitions"] == "3"
"""


def run_pytest(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("form", ["ini", pytest.param("fixture", marks=pytest.mark.slow)])
def test_the_test_passes_with_both_forms_of_settings(form: str, tmp_path: Path) -> None:
    """The fixture that replaces a container starts a broker, too."""
    (tmp_path / "test_orders.py").write_text(TEST + ASSERTIONS)
    (tmp_path / "pytest.ini").write_text(SETTINGS if form == "ini" else "[pytest]\n")
    if form == "fixture":
        (tmp_path / "conftest.py").write_text(CONFIG_FIXTURE)
    check = "\n\ndef test_it(bootstrap_servers):\n    odradek.Admin(bootstrap_servers).close()\n"
    (tmp_path / "test_own.py").write_text(OWN_FIXTURE + check)
    assert "3 passed" in run_pytest(tmp_path)


@pytest.mark.slow
def test_each_worker_has_a_broker_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    check = """

@pytest.mark.parametrize("number", range(6))
def test_address(odradek_broker, odradek_topic, number, worker_id):
    with open(worker_id, "a") as seen:
        print(odradek_broker.bootstrap_servers, file=seen)
"""
    (tmp_path / "test_orders.py").write_text("import pytest\n" + TEST + check)
    assert "7 passed" in run_pytest(tmp_path, "-n", "2")
    addresses = [set(path.read_text().split()) for path in tmp_path.glob("gw*")]
    assert [len(each) for each in addresses] == [1] * len(addresses)
    assert len(set.union(*addresses)) == len(addresses)


def test_the_cluster_is_as_this_page_and_that_of_the_cluster_say(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nodradek_config =\n    broker.session.timeout.ms=3000\n")
    (tmp_path / "test_application.py").write_text(CLUSTER_TEST)
    (of_cluster,) = re.findall(
        r"^```python test\n(.*?)^```", (DOCS / "cluster.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "test_cluster.py").write_text(of_cluster)
    (tmp_path / "test_later.py").write_text(
        "def test_the_network_has_healed(odradek_cluster):\n"
        "    assert not any(one.network_faults for one in odradek_cluster._nodes.values())\n"
    )
    assert "7 passed" in run_pytest(tmp_path)


def test_the_offsets_are_as_the_page_says(tmp_path: Path) -> None:
    """`test_workers_share_one_broker_on_request` of tests/broker/test_pytest_fixtures.py has several workers."""
    (tmp_path / "pytest.ini").write_text(SHARED)
    (tmp_path / "test_offsets.py").write_text(OFFSETS_TEST)
    wrong = OFFSETS_TEST.replace("def test_each", "def test_wrong").replace("{0: 5, 1: 5}", "{0: 5, 1: 6}")
    (tmp_path / "test_wrong.py").write_text(wrong.replace('"billing"', '"audit"'))
    (tmp_path / "test_names.py").write_text(NAMES_TEST)
    output = run_pytest(tmp_path, code=1)
    assert "1 failed, 3 passed" in output
    shown = PAGE.split("AssertionError: ", 1)[1].split("```", 1)[0].splitlines()
    assert shown[0].replace("billing", "audit") in output
    assert shown[1].strip().removeprefix("orders") in output
