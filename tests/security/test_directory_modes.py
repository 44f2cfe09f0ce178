"""Files with credentials are for the broker's user alone, also in a directory that others could read before."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers import Wire

import odradek
from odradek.cli.main import run
from odradek.security.scram import salted_password
from odradek.security.secret import Secret

SALT = b"s" * 16
UPSERTION = {
    "name": "alice",
    "mechanism": 1,
    "iterations": 4096,
    "salt": SALT,
    "salted_password": salted_password("SCRAM-SHA-256", Secret("secret"), SALT, 4096),
}
METADATA = "__cluster_metadata-0"


def add_user(wire: Wire) -> None:
    (result,) = wire.call(51, 0, {"deletions": [], "upsertions": [UPSERTION]}).results
    assert result.error_code == 0


def remove_user(wire: Wire) -> None:
    (result,) = wire.call(51, 0, {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": []}).results
    assert result.error_code == 0


def set_config(wire: Wire, name: str, value: str, broker: str = "") -> None:
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": broker, "configs": [change]}
    (result,) = wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses
    assert result.error_code == 0, result.error_message


def set_password(wire: Wire) -> None:
    set_config(wire, "listener.name.plaintext.ssl.keystore.password", "secret", broker="1")


def set_unknown(wire: Wire) -> None:
    set_config(wire, "a.plugin.password", "secret")


def set_number(wire: Wire) -> None:
    set_config(wire, "log.cleaner.threads", "2")


def open_to_others(data: Path) -> None:
    """Gives a directory the modes of one that another broker has made with the usual umask."""
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def others(*paths: Path) -> list[str]:
    """Returns the names of the files and directories that others may use."""
    found = (each for path in paths for each in (path, *path.rglob("*")))
    return sorted(path.name for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077)


def wait_until_closed(data: Path) -> None:
    deadline_s = time.monotonic() + 10
    while others(data) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert others(data) == []


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("change", [add_user, set_password, set_unknown])
def test_a_start_without_logins_closes_a_directory_with_credentials(
    change: Callable[[Wire], None], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with odradek.Broker(data) as broker, Wire(broker.bootstrap_servers) as wire:
        broker.create_topic("a.b")
        change(wire)
    open_to_others(data)
    mine = data / "notes" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("of the user")
    mine.parent.chmod(0o755)
    mine.chmod(0o644)
    with odradek.Broker(data) as broker:
        assert others(data) == ["mine.txt", "notes"]
        assert "only its owner can enter it now" in broker.log_tail()
        broker.create_topic("later")
        assert others(data) == ["mine.txt", "notes"]


def test_a_directory_without_credentials_keeps_its_mode_and_has_a_closed_metadata_log(tmp_path: Path) -> None:
    """The records of a removed user may still be in the log. A copy of it that a repair has made may have some, too."""
    data = tmp_path / "data"
    with odradek.Broker(data) as broker, Wire(broker.bootstrap_servers) as wire:
        broker.create_topic("t", partitions=1)
        add_user(wire)
        remove_user(wire)
        set_number(wire)
    copy = data / f"{METADATA}.{'0' * 32}-stray"
    copy.mkdir()
    (copy / f"{'0' * 20}.log").write_bytes((data / METADATA / f"{'0' * 20}.log").read_bytes())
    open_to_others(data)
    with odradek.Broker(data):
        assert others(data / METADATA, copy) == []
        assert {"data", "t-0", "meta.properties"} <= set(others(data))


@pytest.mark.parametrize("change", [add_user, set_password])
def test_the_first_credential_closes_the_directory_of_a_running_broker(
    change: Callable[[Wire], None], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with odradek.Broker(data) as broker:
        broker.create_topic("t")
    open_to_others(data)
    with odradek.Broker(data) as broker, Wire(broker.bootstrap_servers) as wire:
        set_number(wire)
        assert "data" in others(data)
        change(wire)
        wait_until_closed(data)


def test_a_repair_makes_files_for_the_owner_alone(tmp_path: Path, usual_umask: None) -> None:
    data = tmp_path / "data"
    with odradek.Broker(data) as broker, Wire(broker.bootstrap_servers) as wire:
        broker.create_topic("t")
        add_user(wire)
    log = data / METADATA / f"{'0' * 20}.log"
    log.write_bytes(log.read_bytes()[:-1])
    assert run(["metadata", "repair", "--data-dir", str(data), "--yes"]) == 0
    assert others(data) == []
    assert os.umask(0o022) == 0o022, "the command has changed the umask of this process"
