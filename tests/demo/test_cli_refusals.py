"""Invalid input to commands that need a broker or a directory gives one clear line on stderr and exit code 2."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forks import odradek_command


def _run(*line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*odradek_command(), *line], capture_output=True, text=True, timeout=60, check=False)


def _assert_refused(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("odradek")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def served(data_dir: Path) -> Iterator[str]:
    """A broker on a directory in ``data_dir``."""
    command = [*odradek_command(), "serve", "--data-dir", str(data_dir / "broker"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready, address = process.stdout.readline().split()
        assert ready == "ready"
        yield address
        process.terminate()
        assert process.wait(20) == 0


def test_a_directory_that_another_broker_holds_is_refused(served: str, data_dir: Path) -> None:
    line = ["serve", "--data-dir", str(data_dir / "broker"), "--listen", "127.0.0.1:0"]
    _assert_refused(_run(*line), "is held by another broker")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        _assert_refused(_run("serve", "--data-dir", str(tmp_path / "d"), "--listen", listen), "in use")


@pytest.mark.parametrize("listen", ["localhost", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", ":9092"])
def test_an_invalid_address_is_refused(tmp_path: Path, listen: str) -> None:
    _assert_refused(_run("serve", "--data-dir", str(tmp_path), "--listen", listen), "HOST:PORT")


def test_an_invalid_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = ["serve", "--data-dir", str(tmp_path / "file" / "d"), "--listen", "127.0.0.1:0"]
    _assert_refused(_run(*line), "cannot be used")


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    line = ["serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--config", "num.partitons=3"]
    _assert_refused(_run(*line), "num.partitions")


def test_the_folder_of_a_demo_is_not_taken_for_that_of_its_broker(tmp_path: Path) -> None:
    """The broker would begin an empty log there, and the person would find no topic."""
    (tmp_path / "demo.json").write_text("{}")
    (tmp_path / "broker").mkdir()
    done = _run("serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    _assert_refused(done, f"is the folder of `odradek demo`: give that of its broker, {tmp_path / 'broker'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker", "demo.json"]


def test_an_unknown_group_is_refused(served: str) -> None:
    _assert_refused(_run("groups", "describe", "--group", "unknown-group", "-b", served), "unknown-group")


def test_a_state_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"some": "thing else"}')
    done = _run("demo", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "use another --data-dir" in done.stderr
