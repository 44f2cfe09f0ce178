"""Entries of a table on a file system without hard links, such as exFAT: they appear whole, and only once.

An entry was created empty there, and then written. A run that was killed between them ended the table for good. The
same happened on any disk if the file to link was removed meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from odradek.core.errors import StorageError
from odradek.pipelines.commit.logs import FileLog
from odradek.pipelines.filesystems import atomic_renames
from odradek.pipelines.filesystems.atomic_renames import rename_exclusively
from odradek.pipelines.filesystems.location import LocalLocation

TEXT = "a" * 100_000 + "\n"


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    return


@pytest.mark.usefixtures("no_links")
def test_one_of_many_callers_creates_an_entry_and_it_is_whole_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _has_rename(tmp_path):
        pytest.skip("this file system has no exclusive rename")
    monkeypatch.setattr(Path, "open", _refused_if_exclusive(Path.open))
    folder = LocalLocation(tmp_path)
    for number in range(20):
        with ThreadPoolExecutor(6) as callers:
            won = list(
                callers.map(lambda caller, n=number: folder.create(f"log-{n}.json", f"{caller}{TEXT}"), range(6))
            )
        assert sum(won) == 1
        assert (tmp_path / f"log-{number}.json").read_text() == f"{won.index(True)}{TEXT}"
    assert len(list(tmp_path.iterdir())) == 20


@pytest.mark.usefixtures("no_links")
def test_without_such_a_rename_the_line_about_an_incomplete_entry_has_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_renames, "rename_exclusively", lambda old, new: False)
    folder = LocalLocation(tmp_path)
    assert folder.create("log-1.json", TEXT)
    assert not folder.create("log-1.json", "b")
    assert (tmp_path / "log-1.json").read_text() == TEXT
    with pytest.raises(
        StorageError, match=r"it is empty\. A run was killed while .* move this file out of _odradek"
    ) as refused:
        FileLog("t", lambda change: {}).parse(2, "", is_newest=True)
    assert "\n" not in str(refused.value)


def test_a_hidden_file_that_was_removed_meanwhile_leaves_no_empty_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def removed(old: Any, new: Any) -> None:
        Path(old).unlink()
        link(old, new)

    monkeypatch.setattr(os, "link", removed)
    with pytest.raises(StorageError, match="cannot be written"):
        LocalLocation(tmp_path).create("log-1.json", TEXT)
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(atomic_renames.sys, "platform", "plan9")
    assert not rename_exclusively(tmp_path / "a", tmp_path / "b")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def _has_rename(place: Path) -> bool:
    (place / "a").touch()
    try:
        return rename_exclusively(place / "a", place / "b")
    finally:
        for name in ("a", "b"):
            (place / name).unlink(missing_ok=True)


def _refused_if_exclusive(real: Any) -> Any:
    def opened(self: Path, mode: str = "r", *given: Any, **named: Any) -> Any:
        assert "x" not in mode, "an entry would be empty at first"
        return real(self, mode, *given, **named)

    return opened
