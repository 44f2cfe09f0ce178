"""A file or folder on one of Hadoop's file systems that another run removes or replaces at the moment of a read."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.core.errors import StorageError
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation
from odradek.pipelines.tables.runs import Run


class AnotherRun:
    """A file system on which another run acts after the first look, or before the first read: whatever comes first."""

    def __init__(self, fs: Any, acts: Callable[[], object]) -> None:
        self._fs, self._acts, self.times = fs, acts, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)

        def call(*given: Any) -> Any:
            if name == "exists":
                found = method(*given)
                self._act()
                return found
            if name in ("open", "listStatus", "listFiles", "getFileStatus"):
                self._act()
            return method(*given)

        return call

    def _act(self) -> None:
        self.times += 1
        if self.times == 1:
            self._acts()


def test_a_record_that_vanishes_between_look_and_read_is_no_record(tmp_path: Path, spark: Any) -> None:
    """Before, the run that looked ended with FileNotFoundException."""
    location = HadoopLocation(spark, tmp_path.as_uri())
    location.write_text("a.json", "{}")
    location._fs = AnotherRun(location._fs, (tmp_path / "a.json").unlink)
    assert location.read_text("a.json") is None


@pytest.mark.parametrize("read", ["children", "age_s", "data_files"])
def test_a_folder_that_vanishes_between_look_and_read_is_empty(read: str, tmp_path: Path, spark: Any) -> None:
    location = HadoopLocation(spark, (tmp_path / "t").as_uri())
    location.write_text("a.parquet", "")
    location._fs = AnotherRun(location._fs, lambda: shutil.rmtree(tmp_path / "t"))
    assert getattr(location, read)() in ([], 0.0)


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, spark: Any) -> None:
    """Java calls it FileNotFoundException, too."""
    (tmp_path / "a.json").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        HadoopLocation(spark, tmp_path.as_uri()).read_text("a.json")


def test_a_record_that_is_renewed_all_the_time_is_read_or_missing(tmp_path: Path, spark: Any) -> None:
    """A run renews its record on Hadoop by a removal and a rename. Others read it at any moment."""
    runs = HadoopLocation(spark, tmp_path.as_uri())
    reader, writer = Run(runs), Run(HadoopLocation(spark, tmp_path.as_uri()))
    writer._write(holds=False)
    is_over = threading.Event()
    failed: list[BaseException] = []

    def renew() -> None:
        try:
            while not is_over.is_set():
                writer._write(holds=False)
        except BaseException as error:
            failed.append(error)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        seen = [len(reader._others()) for _ in range(300)]
    finally:
        is_over.set()
        renewing.join()
    assert failed == []
    assert set(seen) <= {0, 1}
    assert 1 in seen
