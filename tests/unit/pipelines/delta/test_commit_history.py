"""A history that is read from the files of commits is that of deltalake, where deltalake has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from odradek.pipelines.delta.commit_history import with_history
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.text.table_paths import delta_uri


def _restored(folder: Path) -> str:
    """A log of three commits, and a RESTORE of the second."""
    uri = delta_uri(str(folder))
    for value in range(3):
        deltalake.write_deltalake(uri, pa.table({"x": [value]}), mode="append")
    deltalake.DeltaTable(uri).restore(1)
    return uri


def _shown(history: list[dict[str, Any]]) -> list[tuple[int, str, int]]:
    return [(commit["version"], commit["operation"], commit["timestamp"]) for commit in history]


def test_the_history_is_that_of_deltalake_at_each_version(tmp_path: Path) -> None:
    """Also the one of an earlier version, which has the later commits, and numbers them from its own version on."""
    uri = _restored(tmp_path / "t")
    for version in (None, 3, 1):
        log = deltalake.DeltaTable(uri, version=version)
        read = with_history(log, "file:///a%3Fb", LocalLocation(tmp_path / "t"))
        assert read is not log
        assert _shown(read.history()) == _shown(log.history())
        assert len(read.history()) == 4
        assert read.version() == log.version()


def test_only_a_path_that_deltalake_reads_wrongly_has_its_history_read_here(tmp_path: Path) -> None:
    for name, commits in (("a b", 4), ("a?b", 4), ("a#b", 4)):
        uri = _restored(tmp_path / name)
        log = deltalake.DeltaTable(uri)
        read = with_history(log, uri, LocalLocation(tmp_path / name))
        assert (read is log) == (name == "a b")
        assert len(read.history()) == commits
        assert [commit["version"] for commit in read.history()] == [3, 2, 1, 0]
