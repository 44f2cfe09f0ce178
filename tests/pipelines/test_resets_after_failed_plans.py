"""A reset of the group is followed although a failed run has planned a micro-batch, the first one or a later one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from restored_broker import offsets_of
from support.brokers import unique
from support.forks import run_steps
from support.publish import create_topic, publish


@pytest.mark.parametrize("good", [0, 5])
def test_a_reset_skips_a_value_that_ends_each_run(bootstrap: str, tmp_path: Path, good: int) -> None:
    """Before, each run repeated the plan with the bad value first, and ended there."""
    topic = unique("bad")
    create_topic(bootstrap, topic)
    into = ["--topics", topic, "--group", topic, "--output", str(tmp_path / "t"), "--value-format", "json"]
    ingest = ["pipeline", "ingest", "-b", bootstrap, *into, "--on-bad", "fail"]

    def send(*values: bytes) -> None:
        publish(bootstrap, topic, list(values))

    def ends(done: subprocess.CompletedProcess[str], code: int) -> None:
        assert (done.returncode != 0) == bool(code), done.stdout + done.stderr

    if good:
        send(*[b"1"] * good)
        ends(run_steps(ingest), 0)
    send(b"{", b"2")
    ends(run_steps(ingest), 1)
    ends(run_steps(ingest), 1)
    reset = ["groups", "reset", "-b", bootstrap, "--group", topic, "--topic", topic, "--to-offset", str(good + 1)]
    ends(run_steps([*reset, "--mark", "--execute"], ingest, ingest), 0)
    assert offsets_of(tmp_path / "t", "parquet") == [(0, at) for at in (*range(good), good + 1)]
