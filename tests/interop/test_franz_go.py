"""franz-go against the broker: a small Go program tells what it saw, and this judges it.

Apache Kafka 4.3 passes all of it (ODRADEK_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique

SOURCES = Path(__file__).parent / "franz"
BUILD_S = 300


@pytest.fixture(scope="module")
def program() -> Path:
    """The built program, kept in a cache directory by what it was built from; skips where it cannot be built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go to build the franz-go program with")
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((SOURCES / name).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek-interop"
    path = cache / f"franz-{digest.hexdigest()[:16]}"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        command = [go, "build", "-o", str(fresh), "."]
        try:
            subprocess.run(command, cwd=SOURCES, check=True, capture_output=True, text=True, timeout=BUILD_S)
        except subprocess.CalledProcessError as error:
            if "main.go:" in error.stderr:
                raise AssertionError(f"the program does not compile: {error.stderr}") from error
            pytest.skip(f"the franz-go program cannot be built: {error.stderr.strip()[-300:]}")
        except subprocess.TimeoutExpired:
            pytest.skip(f"the franz-go program was not built within {BUILD_S} s")
        fresh.rename(path)
    return path


@pytest.fixture(scope="module")
def seen(program: Path, bootstrap: str) -> dict[str, list[dict[str, Any]]]:
    """What the program told, by step."""
    names = [unique("franz"), unique("franz-group")]
    done = subprocess.run([program, bootstrap, *names], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    steps: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        told = json.loads(line)
        steps.setdefault(told.pop("step"), []).append(told)
    assert "done" in steps
    return steps


def test_topics(seen: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = seen["topics"]
    assert told["created_id"] == told["listed_id"]
    del told["created_id"], told["listed_id"]
    assert told == {"partitions": 4, "again": True, "retention": "7200000", "internal": False, "brokers": 1}


@pytest.mark.claim(1, 10)
@pytest.mark.behaviour(55)
def test_every_codec_with_idempotence(seen: dict[str, list[dict[str, Any]]]) -> None:
    assert [told["codec"] for told in seen["produced"]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert len({told["producer"] for told in seen["produced"]}) == 5
    for number, told in enumerate(seen["produced"], 1):
        assert told["epoch"] == 0
        # 50 records over 4 partitions: 13, 13, 12, 12 each time.
        assert told["last"] == {"0": 13 * number - 1, "1": 13 * number - 1, "2": 12 * number - 1, "3": 12 * number - 1}


@pytest.mark.claim(2, 3)
@pytest.mark.behaviour(47, 48, 49)
def test_offsets_by_time(seen: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = seen["offsets"]
    base = 1_700_000_000_000
    assert told["start"] == [0, 0, 0, 0]
    assert told["end"] == told["late"] == [65, 65, 60, 60]  # the client makes "none" the end
    assert told["middle"] == [31, 31, 29, 29]  # the 20th record of the third codec, inside compressed batches
    assert told["newest"] == [64, 64, 59, 59]
    assert told["newest_times"] == [base + 248, base + 249, base + 246, base + 247]


@pytest.mark.claim(5, 6)
def test_reading_with_and_without_fetch_sessions(seen: dict[str, list[dict[str, Any]]]) -> None:
    whole = {"values": 250, "gaps": 0, "headers": 250, "next": {"0": 65, "1": 65, "2": 60, "3": 60}}
    assert seen["read"] == [whole | {"sessions": True}, whole | {"sessions": False}]


@pytest.mark.claim(59, 61, 62, 63, 64)
@pytest.mark.behaviour(22)
def test_a_group_of_two(seen: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = seen["group"]
    assert sorted(told["one"] + told["two"]) == [0, 1, 2, 3]
    assert len(told["one"]) == len(told["two"]) == 2
    assert (told["state"], told["listed"], told["protocol"]) == ("Stable", "Stable", "cooperative-sticky")
    assert (told["members"], told["owners"], told["read"], told["lag"]) == (2, 2, 250, 0)
    assert len(told["hosts"]) == 2
    assert told["refused"], "a group with members is not deleted"
    assert seen["takeover"][0]["one"] == [0, 1, 2, 3]


@pytest.mark.claim(19, 39)
@pytest.mark.behaviour(1, 8, 25, 26)
def test_offsets_by_hand(seen: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = seen["commits"]
    assert told["before"] == [65, 65, 60, 60]
    assert told["after"] == [10, 11, 12, 13]
    assert told["notes"] == ["note 0", "note 1", "note 2", "note 3"]
    assert told["lag"] == 250 - (10 + 11 + 12 + 13)
    assert told["left"] == [10, 11, 12, -1], "one was deleted"
    assert (told["state"], told["groups"]) == ("Empty", 2)


@pytest.mark.claim(46, 49, 50)
@pytest.mark.behaviour(43)
def test_a_static_member_goes_on_where_the_group_stands(seen: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = seen["regroup"]
    assert (told["read"], told["twice"], told["partitions"]) == (250 - (10 + 11 + 12), 0, [0, 1, 2, 3])
    assert told["generation"] > 1


@pytest.mark.claim(2, 55)
@pytest.mark.behaviour(53)
def test_what_is_deleted_is_gone(seen: dict[str, list[dict[str, Any]]]) -> None:
    wanted = {"dead": "Dead", "end": [65, 65, 60, 60], "start": 5, "low": 5, "grown": 6, "again": True}
    assert seen["ending"] == [wanted]
