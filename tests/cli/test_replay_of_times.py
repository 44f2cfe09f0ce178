"""``odradek pipeline replay`` between two times: a time means an offset, and the command says so."""

from __future__ import annotations

import pytest
from support.publish import create_topic, publish

from odradek.cli.main import run

HOUR_MS = 3_600_000
NOON_MS = 1_767_268_800_000
"""2026-01-01T12:00:00Z"""


def test_a_time_is_the_first_offset_with_it_or_a_later_one(
    bootstrap: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka's ``offsetsForTimes`` has the same meaning. The record of 13:00 that comes late is behind the end."""
    create_topic(bootstrap, topic)
    hours = [0, 1, 0, 2, 1]
    publish(bootstrap, topic, [b"%d" % one for one in hours], timestamps_ms=[NOON_MS + one * HOUR_MS for one in hours])
    words = ["pipeline", "replay", "-b", bootstrap, "--topics", topic, "--dry-run"]
    times = ["--from", "2026-01-01T13:00:00Z", "--to", "2026-01-01T14:00:00Z"]
    assert run([*words, *times]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.startswith(topic)] == [[topic, "0", "1", "3", "2"]]
    assert "A time means the first offset with this time or a later one." in out
    for bounds in (["--from", "1", "--to", "3"], ["--from", "earliest"]):
        assert run([*words, *bounds]) == 0
        assert "A time means" not in capsys.readouterr().out
    assert run([*words, "--from", "2099-01-01T00:00:00"]) == 0
    assert "Warning: there is no record at or after --from 2099-01-01T00:00:00." in capsys.readouterr().err
