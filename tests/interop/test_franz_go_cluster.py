"""franz-go with a cluster: the Go program of ``test_franz_go`` at three brokers, and at a node with both roles."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.cluster_processes import CombinedCluster
from support.go_programs import go_program

import odradek

SOURCES = Path(__file__).parent / "franz"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program() -> Path:
    return go_program(SOURCES)


@pytest.fixture(scope="module", params=["three brokers and a controller", "a node with both roles and two brokers"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param.startswith("three"):
        with odradek.Cluster(3) as cluster:
            yield cluster.bootstrap_servers
    else:
        with CombinedCluster(tmp_path_factory.mktemp("combined")) as combined:
            yield combined.bootstrap


@pytest.fixture(scope="module")
def seen(program: Path, bootstrap: str) -> dict[str, list[dict[str, Any]]]:
    """The output of the program, by step."""
    names = [unique("franz"), unique("franz-group")]
    first = bootstrap.partition(",")[0]  # the program takes one address
    done = subprocess.run([program, first, *names], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    steps: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        output = json.loads(line)
        steps[output.pop("step")].append(output)
    return steps


def test_the_whole_program_runs(seen: dict[str, list[dict[str, Any]]]) -> None:
    assert "done" in seen
    (topics,) = seen["topics"]
    assert (topics["brokers"], topics["partitions"], topics["again"]) == (3, 4, True)


def test_records_with_every_codec_are_written_at_their_leaders_and_read(seen: dict[str, list[dict[str, Any]]]) -> None:
    assert [output["codec"] for output in seen["produced"]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert seen["produced"][-1]["last"] == {"0": 64, "1": 64, "2": 59, "3": 59}
    (offsets,) = seen["offsets"]
    assert (offsets["start"], offsets["end"]) == ([0, 0, 0, 0], [65, 65, 60, 60])
    assert [(output["values"], output["gaps"]) for output in seen["read"]] == [(250, 0), (250, 0)]


def test_groups_commit_at_their_coordinator(seen: dict[str, list[dict[str, Any]]], program: Path) -> None:
    """The same steps as at one broker, whose values ``test_franz_go`` checks."""
    assert set(seen) >= {"topics", "produced", "offsets", "read", "done"}
    assert any(step.startswith(("commit", "group", "together", "members")) for step in seen), sorted(seen)
