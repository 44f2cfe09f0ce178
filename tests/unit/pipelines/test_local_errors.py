"""An error of a file of this machine names the file, the cause and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from odradek.core.errors import StorageError
from odradek.pipelines.filesystems import location as module
from odradek.pipelines.filesystems.local_errors import local_error
from odradek.pipelines.filesystems.location import LocalLocation


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EACCES, "/t/runs/r.json cannot be written: Permission denied. Let the user .* write /t/runs with"),
        (errno.EPERM, "/t/runs/r.json cannot be written: Operation not permitted. Let the user .*lsattr"),
        (errno.EROFS, "Read-only file system.*Mount its file system with the right to write"),
        (errno.ENOSPC, "No space left on device.*Make room, and run the command again"),
        (errno.EDQUOT, "quota is used up. Make room"),
        (errno.EMFILE, r"limit of open files is too low: raise it \(ulimit -n\)"),
        (errno.EFBIG, r"limit of the size of a file is too low: raise it \(ulimit -f\)"),
    ],
)  # fmt: skip
def test_the_line_has_the_file_and_the_remedy(number: int, says: str) -> None:
    error = OSError(number, os.strerror(number), "/t/runs/r.json")
    with pytest.raises(StorageError, match=says) as failed:
        raise local_error(Path("/t/runs/r.json"), "written", error)
    assert "\n" not in str(failed.value)


def test_each_call_of_a_folder_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = LocalLocation(tmp_path / "runs")

    def refuse(path: Path, *more: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(module, "_write_synced", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    for call in (
        lambda: location.write_text("r.json", ""),
        lambda: location.create("r.json", ""),
        lambda: location.rename(str(tmp_path / "other")),
        location.children,
    ):
        says = rf"{tmp_path}/runs\S* cannot be .*: Permission denied. Let the user \d+ read and write {tmp_path}"
        with pytest.raises(StorageError, match=says):
            call()
