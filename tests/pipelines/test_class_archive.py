"""Java's classes kept between runs: which options say so, that the file appears whole, and that Java takes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.spark import session as spark_session
from odradek.spark.class_archive import SETTING, ClassArchive


def test_an_archive_is_made_once_and_used_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "a cache" / "spark.jsa"
    settings = {SETTING: str(path)}
    assert ClassArchive.of({}) is None
    first = ClassArchive.of(settings)
    assert first is not None
    assert first.java_option == f"'-XX:ArchiveClassesAtExit={path}.{os.getpid()}'"
    partial = path.with_name(f"spark.jsa.{os.getpid()}")
    partial.write_text("half")
    first.keep(complete=False)
    assert list(path.parent.iterdir()) == []
    partial.write_text("whole")
    first.keep(complete=True)
    assert [file.name for file in path.parent.iterdir()] == ["spark.jsa"]
    second = ClassArchive.of(settings)
    assert second is not None
    assert (second.is_made, second.java_option) == (False, f"'-XX:SharedArchiveFile={path}'")

    options = spark_session._settings("app", "local[1]", settings, tmp_path)["spark.driver.extraJavaOptions"]
    assert second.java_option in options
    assert "jsa" not in spark_session._settings("app", "local[1]", {}, tmp_path)["spark.driver.extraJavaOptions"]


def test_a_java_that_wrote_none_leaves_none(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "spark.jsa")
    archive.keep(complete=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_java_takes_what_it_has_written(tmp_path: Path) -> None:
    """With ``-Xshare:on`` Java does not start where it cannot use the archive."""
    path = tmp_path / "cache" / "spark.jsa"

    def run(java_options: str) -> None:
        config = {SETTING: str(path), "spark.driver.extraJavaOptions": java_options}
        code = (
            "from odradek.spark.session import session\n"
            f"spark = session('archive', 'local[1]', {config!r})\n"
            "assert spark.range(7).count() == 7"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr

    run("-Xshare:auto")
    made = path.stat()
    assert made.st_size > 10 << 20
    run("-Xshare:on")
    assert path.stat().st_mtime_ns == made.st_mtime_ns
    assert [file.name for file in path.parent.iterdir()] == ["spark.jsa"]
