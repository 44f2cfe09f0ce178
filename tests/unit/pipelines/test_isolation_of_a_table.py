"""A table notes whether all its runs have read committed records only; ``verify`` reads the note."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from odradek.audit.table_notes import reads_committed, texts_in
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.formats.target import Target


def noted(folder: Path) -> bool:
    return reads_committed(texts_in(fs.LocalFileSystem(), str(folder)))


def test_one_run_with_uncommitted_records_takes_the_note_away(tmp_path: Path) -> None:
    def begin(name: str, isolation: str) -> str:
        location, shape = LocalLocation(tmp_path / name), Target(str(tmp_path / name)).layout()
        return begin_table(location, shape, lambda: True, isolation=isolation)

    known = begin("t", "read_committed")
    assert noted(tmp_path / "t")
    assert begin("t", "read_committed") == known
    assert noted(tmp_path / "t")
    assert begin("t", "read_uncommitted") == known
    assert not noted(tmp_path / "t")
    assert begin("t", "read_committed") == known
    assert not noted(tmp_path / "t")
    begin("u", "read_uncommitted")
    begin("u", "read_committed")
    assert not noted(tmp_path / "u")


def test_a_table_without_the_note_is_not_known(tmp_path: Path) -> None:
    """Those of earlier versions, and those of other tools."""
    assert not noted(tmp_path / "missing")
    (tmp_path / "_odradek").mkdir()
    for text in ('{"version": 1, "id": "x", "shape": {}}', "[]", "no JSON", ""):
        (tmp_path / "_odradek" / "table.json").write_text(text)
        assert not noted(tmp_path)
