"""A table whose folder is a mount of its own: nothing can be renamed into it from the folder beside it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from table_rows import QUERY, Rows, begun_table, files, plan, rows_of

from odradek.core.errors import StorageError
from odradek.pipelines.commit.operations import FinishEntry
from odradek.pipelines.filesystems.location import LocalLocation


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder ``t`` that is a mount: a real one if this user may make it, otherwise the errors of one."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "t").mkdir()
    done = subprocess.run(
        ["mount", "--bind", str(tmp_path / "volume"), str(tmp_path / "t")], capture_output=True, check=False
    ) if shutil.which("mount") else None  # fmt: skip
    if done is not None and done.returncode == 0:
        try:
            yield tmp_path
        finally:
            subprocess.run(["umount", str(tmp_path / "t")], check=True)
        return
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, _across(tmp_path / "t", getattr(os, name)))
    yield tmp_path


def _across(mount: Path, real: Any) -> Any:
    def move(old: Any, new: Any, **more: Any) -> None:
        if Path(old).is_relative_to(mount) != Path(new).is_relative_to(mount):
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(old), None, str(new))
        real(old, new, **more)

    return move


def test_a_table_on_a_mount_is_written(mounted: Path) -> None:
    """Before, the entry was in the log, and its files could never be moved: each later run ended, too."""
    table = begun_table("parquet", mounted, "a" * 32)
    table.add(Rows(10), plan(0))
    table.close()
    again = begun_table("parquet", mounted, "b" * 32)
    again.add(Rows(10), plan(1))
    again.close()
    assert rows_of(mounted) == 20
    assert not any(path.name.startswith(".") for path in (mounted / "t").rglob("*"))


def test_an_entry_whose_files_an_earlier_version_could_not_move_is_finished(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = begun_table("parquet", mounted, "a" * 32)
    real = table._perform

    def perform(operation: object) -> object:
        if isinstance(operation, FinishEntry) and operation.position.number:
            raise StorageError("cross-device link")
        return real(operation)

    monkeypatch.setattr(table, "_perform", perform)
    with pytest.raises(StorageError, match="cross-device"):
        table.add(Rows(10), plan(0))
    assert rows_of(mounted) == 0
    begun_table("parquet", mounted, "b" * 32).close()
    assert rows_of(mounted) == 10
    assert f"batch-000000-{QUERY[:8]}" in files(mounted)[0]


def test_the_folder_beside_a_mount_is_not_used_unless_it_has_something(mounted: Path) -> None:
    """In a container, the folder beside a volume is gone with the container."""
    table, beside = LocalLocation(mounted / "t"), mounted / ".t.staging"
    assert table.sibling(".", ".staging") is None
    assert not beside.exists()
    (beside / "run").mkdir(parents=True)
    found = table.sibling(".", ".staging")
    assert found is not None
    assert found.children() == ["run"]


def test_a_folder_on_the_same_mount_is_used(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    found = LocalLocation(tmp_path / "t").sibling(".", ".staging")
    assert found is not None
    assert (found.children(), os.listdir(tmp_path / "t")) == ([], [])
