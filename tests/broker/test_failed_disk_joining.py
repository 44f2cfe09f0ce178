"""A node of a cluster whose disk fails before it has joined ends with one line and exit code 74."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import eventually
from support.faulty_process import FaultyProcess
from test_cluster_bad_input import SETTINGS, node

import odradek
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.testing.process import BrokerFailed, BrokerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the hook finds the names of files in /proc")


def failing_start(made: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Starts a node that ends before it serves. Returns its exit code and the lines that it has printed."""
    codes: list[int] = []
    first_line = made._first_line

    def noted(process: subprocess.Popen[bytes]) -> str:
        line = first_line(process)
        codes.append(process.wait(60))
        return line

    monkeypatch.setattr(made, "_first_line", noted)
    with pytest.raises(BrokerFailed):
        made.start()
    return codes[0], made.log_path.read_text().splitlines()


@pytest.mark.usefixtures("plain_broker")  # the hook acts at the start of a Python process
def test_a_disk_that_fails_before_a_broker_has_joined_ends_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyProcess(tmp_path)
    with odradek.Cluster(1, config=SETTINGS) as cluster:
        made = node(cluster, tmp_path / "node", 3)
        faulty.fail(("writev", errno.EIO, DIRECTORY))
        with monkeypatch.context() as patched:
            for name, value in faulty.variables.items():
                patched.setenv(name, value)
            code, lines = failing_start(made, patched)
        assert code == 74
        assert len(lines) == 1, lines
        assert "odradek broker: the broker ends: " in lines[0]
        assert DIRECTORY in lines[0]
        assert lines[0].endswith("; the next start checks the logs")
        faulty.fail()
        with made:  # the next start is well
            assert made.running


def test_a_broker_that_waits_for_its_controller_removes_what_its_dead_parent_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary node whose parent dies while it waits: its directory is removed, as that of a node that serves."""
    with odradek.Cluster(1, config=SETTINGS) as cluster:
        cluster.kill("controller")
        made = node(cluster, tmp_path / "node", 3)
        made.temporary = True
        home = made.directory

        def dead_parent(process: subprocess.Popen[bytes]) -> str:
            eventually(lambda: "cannot be reached" in made.log_tail(), what="the node does not wait")
            assert made._control is not None
            made._control.close()
            return str(process.wait(60))

        monkeypatch.setattr(made, "_first_line", dead_parent)
        with pytest.raises(BrokerFailed, match="did not start: 0"):
            made.start()
        assert not home.exists()
