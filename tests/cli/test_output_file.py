"""Output files: regular files are replaced when they are complete, devices, FIFOs and symlinks are written through."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from odradek.cli.terminal import CommandError
from odradek.cli.undo_file import pasted, write_undo
from odradek.core.errors import StorageError
from odradek.history.report import write_page
from odradek.text.output_file import PositionedStream, new_file, output_file, problem_of, put_in_place

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no FIFOs and devices in folders")


def through_fifo(fifo: Path, write: object) -> bytes:
    """Calls ``write`` while another thread reads the FIFO. Returns what that thread has read."""
    os.mkfifo(fifo)
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    thread.start()
    write()
    thread.join(10)
    assert stat.S_ISFIFO(fifo.stat().st_mode), "the FIFO is still one"
    return read[0]


def test_a_regular_file_is_replaced_at_the_end_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "page"
    file.write_text("old")
    file.chmod(0o640)
    with output_file(file) as stream:
        stream.write(b"new")
        stream.flush()
        assert file.read_text() == "old"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)
    with pytest.raises(OSError, match="full"), output_file(file) as stream:
        raise OSError("full" * stream.write(b"1"))
    assert file.read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["page"], "no part is left"


def test_a_symlink_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "far" / "target")
    for text in ("first", "second"):
        write_page(link, text)
        assert link.is_symlink()
        assert (tmp_path / "far" / "target").read_text() == text


def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    assert through_fifo(tmp_path / "page", lambda: write_page(tmp_path / "page", "<html>")) == b"<html>"
    (tmp_path / "link").symlink_to(tmp_path / "f")
    undo = tmp_path / "link"
    assert through_fifo(tmp_path / "f", lambda: write_undo("t,0,5\n", undo, "csv")) == b"t,0,5\n"
    part = tmp_path / "part"
    part.write_bytes(b"table")
    assert through_fifo(tmp_path / "table", lambda: put_in_place(part, tmp_path / "table")) == b"table"
    assert not part.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_device_is_written_and_not_replaced() -> None:
    """Once, a page of 5 MB replaced /dev/full; a name in /dev is never a file to replace."""
    before = os.stat("/dev/full")
    with pytest.raises(StorageError, match="/dev/full: No space left on device"):
        write_page(Path("/dev/full"), "x" * 100_000)
    with pytest.raises(CommandError, match="No space left on device: give another file with --undo-file"):
        write_undo("t,0,5\n", Path("/dev/full"), "csv")
    with output_file(Path("/dev/null")) as stream:
        stream.write(b"gone")
    assert os.stat("/dev/full") == before


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "out"])
def test_standard_output_that_is_a_file_is_continued_and_not_replaced(tmp_path: Path, name: str) -> None:
    program = (
        "import sys; from pathlib import Path; from odradek.text.output_file import output_file\n"
        "print('before')\n"
        f"with output_file(Path({name!r})) as stream: stream.write(b'middle\\n')\n"
        "print('after')\n"
    )
    out = tmp_path / "out"
    if name == "out" and sys.platform != "linux":
        pytest.skip("the comparison of open files is tested on Linux")
    with out.open("wb") as target:
        subprocess.run([sys.executable, "-c", program], stdout=target, cwd=tmp_path, check=True, timeout=60)
    if name == "out":  # the same file by its own name is a regular file: its new content replaces it
        assert out.read_bytes() == b"middle\n"
    else:
        assert out.read_bytes() == b"before\nmiddle\nafter\n"


def test_problems_are_found_before_the_long_work(tmp_path: Path) -> None:
    assert problem_of(tmp_path) == "is a directory, not a file: give a file"
    assert (
        problem_of(tmp_path / "no" / "file")
        == f"there is no directory {tmp_path / 'no'}: make it, or give another path"
    )
    assert problem_of(tmp_path / "file") is None
    (tmp_path / "link").symlink_to(tmp_path / "no" / "file")
    assert problem_of(tmp_path / "link") == f"there is no directory {tmp_path / 'no'}: make it, or give another path"
    os.mkfifo(tmp_path / "fifo")
    assert problem_of(tmp_path / "fifo") is None


def test_a_new_file_does_not_replace_another_one(tmp_path: Path) -> None:
    file = tmp_path / "undo.csv"
    file.write_text("kept")
    with pytest.raises(FileExistsError), new_file(file):
        raise AssertionError
    with pytest.raises(CommandError, match=r"--undo-file .*undo\.csv exists and is not overwritten"):
        write_undo("t,0,5\n", file, "csv")
    assert file.read_text() == "kept"


def test_undo_files_without_a_name_are_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    made = [write_undo("t,0,5\n", None, kind) for kind in ("csv", "txt")]
    assert [one.parent for one in made] == [tmp_path / "data" / "odradek" / "undo"] * 2
    assert [one.name for one in tmp_path.iterdir()] == ["data"]
    monkeypatch.setenv("XDG_DATA_HOME", str(made[0]))
    with pytest.raises(CommandError, match=r"Not a directory: give another file with --undo-file"):
        write_undo("t,0,5\n", None, "csv")


def test_a_hint_can_be_pasted_into_a_shell() -> None:
    line = pasted("odradek", "groups", "reset", "--group", "a b'c", None, b="h:1", command_config=None, path="/x y")
    words = ["odradek", "groups", "reset", "--group", "a b'c", "-b", "h:1", "--path", "/x y"]
    shown = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == words


def test_a_stream_knows_its_position_in_a_pipe() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb") as target:
        stream = PositionedStream(target)
        stream.write(b"PAR1")
        assert stream.tell() == 4
        stream.close()
        assert source.read(4) == b"PAR1"
        assert not target.closed
