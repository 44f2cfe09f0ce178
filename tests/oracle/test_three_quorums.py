"""All tests of the catalogue pass on three quorums of the metadata log (``support.quorums``).

They are those that drive the controller, or read what it has changed: topics, settings, quotas, users, ACLs, features,
producer ids, snapshots, starts. In each other run they use the quorum of a lone broker.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.quorums import DELAYED, KIND, NOTES, ONE_VOTER

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "broker": "acls authorized_requests broker_kill coordinators damaged_files failed_disk_process full_disk_broker "
    "full_disk_cases high_watermark led_partitions metadata_publishers new_api node offsets_topic_replicas "
    "public_settings quotas recreated_topics requests_without_a_coordinator server_start_and_stop server_topics "
    "settings_effects transactions transactions_restarts users_and_features",
    "cli": "cli_groups cli_metadata cli_topics",
    "client": "client_admin producer topic_creation",
    "interop": "java_admin_tools",
    "limits": "data_directory metadata_snapshots protecting_settings quota_tables topic_bursts",
    "oracle": "acls_differential admin_differential apis_differential transactions_differential",
    "security": "broker_logins scram",
    "simulation": "broker_simulation",
}
"""Folder → the tests' names, without ``test_``."""


def test_each_file_exists() -> None:
    assert [path for path in catalogue_tests() if not (ROOT / path).exists()] == []


def catalogue_tests() -> list[str]:
    return [f"tests/{folder}/test_{name}.py" for folder, names in FILES.items() for name in names.split()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ONE_VOTER, DELAYED])
def test_all_tests_of_the_catalogue_pass(kind: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not slow"]
    command += ["--basetemp", str(tmp_path / "run")]  # the runs of others remove what is in pytest's usual directory
    run = subprocess.run(
        [*command, *catalogue_tests()],
        check=False, capture_output=True, text=True, cwd=ROOT, timeout=3_600,
        env=os.environ | {KIND: kind, NOTES: str(notes)},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-2_000:]
    assert int(re.findall(r"(\d+) passed", run.stdout)[-1]) > 1_000
    started = Counter(line.split()[0] for line in notes.read_text().splitlines())
    assert started[kind] > 150, "a test starts brokers with the chosen quorum"
