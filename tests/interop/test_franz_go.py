"""franz-go with the broker: a Go program prints what it sees, and the tests check its output.

Apache Kafka 4.3 passes these tests (ODRADEK_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.go_programs import go_program

SOURCES = Path(__file__).parent / "franz"


@pytest.fixture(scope="module")
def program() -> Path:
    return go_program(SOURCES)


@pytest.fixture(scope="module")
def seen(program: Path, bootstrap: str) -> dict[str, list[dict[str, Any]]]:
    """The output of the program, by step."""
    names = [unique("franz"), unique("franz-group")]
    done = subprocess.run([program, bootstrap, *names], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    steps: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        output = json.loads(line)
        steps.setdefault(output.pop("step"), []).append(output)
    assert "done" in steps
    return steps


def test_topics_are_created_and_listed(seen: dict[str, list[dict[str, Any]]]) -> None:
    (output,) = seen["topics"]
    assert output["created_id"] == output["listed_id"]
    del output["created_id"], output["listed_id"]
    assert output == {"partitions": 4, "again": True, "retention": "7200000", "internal": False, "brokers": 1}


@pytest.mark.claim(1)
@pytest.mark.claim(10, part=True)
@pytest.mark.behaviour(55, part=True)
def test_an_idempotent_producer_writes_with_every_codec(seen: dict[str, list[dict[str, Any]]]) -> None:
    assert [output["codec"] for output in seen["produced"]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert len({output["producer"] for output in seen["produced"]}) == 5
    for number, output in enumerate(seen["produced"], 1):
        assert output["epoch"] == 0
        # 50 records over 4 partitions: 13, 13, 12, 12 each time.
        assert output["last"] == {
            "0": 13 * number - 1,
            "1": 13 * number - 1,
            "2": 12 * number - 1,
            "3": 12 * number - 1,
        }


@pytest.mark.claim(2, 3, part=True)
@pytest.mark.behaviour(48)
@pytest.mark.behaviour(47, 49, part=True)
def test_offsets_are_found_by_time(seen: dict[str, list[dict[str, Any]]]) -> None:
    (output,) = seen["offsets"]
    base = 1_700_000_000_000
    assert output["start"] == [0, 0, 0, 0]
    assert output["end"] == output["late"] == [65, 65, 60, 60]  # the client replaces "no offset" by the log end
    assert output["middle"] == [31, 31, 29, 29]  # the 20th record of the third codec, inside compressed batches
    assert output["newest"] == [64, 64, 59, 59]
    assert output["newest_times"] == [base + 248, base + 249, base + 246, base + 247]


@pytest.mark.claim(6)
@pytest.mark.claim(5, part=True)
def test_all_records_are_read_with_and_without_fetch_sessions(seen: dict[str, list[dict[str, Any]]]) -> None:
    whole = {"values": 250, "gaps": 0, "headers": 250, "next": {"0": 65, "1": 65, "2": 60, "3": 60}}
    assert seen["read"] == [whole | {"sessions": True}, whole | {"sessions": False}]


@pytest.mark.claim(59)
@pytest.mark.claim(61, 62, 63, 64, part=True)
@pytest.mark.behaviour(22)
def test_two_members_share_a_group(seen: dict[str, list[dict[str, Any]]]) -> None:
    (output,) = seen["group"]
    assert sorted(output["one"] + output["two"]) == [0, 1, 2, 3]
    assert len(output["one"]) == len(output["two"]) == 2
    assert (output["state"], output["listed"], output["protocol"]) == ("Stable", "Stable", "cooperative-sticky")
    assert (output["members"], output["owners"], output["read"], output["lag"]) == (2, 2, 250, 0)
    assert len(output["hosts"]) == 2
    assert output["refused"], "a group with members is not deleted"
    assert seen["takeover"][0]["one"] == [0, 1, 2, 3]


@pytest.mark.claim(19, 39, part=True)
@pytest.mark.behaviour(1)
@pytest.mark.behaviour(8, 25, 26, part=True)
def test_offsets_are_committed_and_deleted_by_the_admin_client(seen: dict[str, list[dict[str, Any]]]) -> None:
    (output,) = seen["commits"]
    assert output["before"] == [65, 65, 60, 60]
    assert output["after"] == [10, 11, 12, 13]
    assert output["notes"] == ["note 0", "note 1", "note 2", "note 3"]
    assert output["lag"] == 250 - (10 + 11 + 12 + 13)
    assert output["left"] == [10, 11, 12, -1], "the last offset was deleted"
    assert (output["state"], output["groups"]) == ("Empty", 2)


@pytest.mark.claim(46, 49, 50, part=True)
@pytest.mark.behaviour(43, part=True)
def test_a_static_member_continues_at_the_committed_offsets(seen: dict[str, list[dict[str, Any]]]) -> None:
    (output,) = seen["regroup"]
    assert (output["read"], output["twice"], output["partitions"]) == (250 - (10 + 11 + 12), 0, [0, 1, 2, 3])
    assert output["generation"] > 1


@pytest.mark.claim(2, 55, part=True)
@pytest.mark.behaviour(53, part=True)
def test_groups_topics_and_records_are_deleted(seen: dict[str, list[dict[str, Any]]]) -> None:
    wanted = {"dead": "Dead", "end": [65, 65, 60, 60], "start": 5, "low": 5, "grown": 6, "again": True}
    assert seen["ending"] == [wanted]
