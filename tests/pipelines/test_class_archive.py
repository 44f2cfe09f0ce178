"""The archive of Java's classes: the options that enable it, its file, and its use. The file is never incomplete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.pipelines import ingest, replay
from odradek.spark import session as sessions
from odradek.spark.startup.class_archive import SETTING, ClassArchive, default_path


def test_an_archive_is_made_once_and_then_used(tmp_path: Path) -> None:
    path = tmp_path / "a cache" / "spark.jsa"
    settings = {SETTING: str(path)}
    assert ClassArchive.of({}) is None
    first = ClassArchive.of(settings)
    assert first is not None
    assert first.java_option == f"'-XX:ArchiveClassesAtExit={first.partial}'"
    assert first.partial.parent == path.parent
    first.partial.write_text("half")
    first.keep(complete=False)
    assert list(path.parent.iterdir()) == []
    first.partial.write_text("of a start that failed")
    first.keep(complete=True)
    assert list(path.parent.iterdir()) == []
    first.is_worth_keeping = True
    first.partial.write_text("whole")
    first.keep(complete=True)
    assert [file.name for file in path.parent.iterdir()] == ["spark.jsa"]
    second = ClassArchive.of(settings)
    assert second is not None
    assert (second.is_made, second.java_option) == (False, f"'-XX:SharedArchiveFile={path}'")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, on a machine without options for Java."""
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def default(cache: Path, tmp_path: Path) -> Path:
    (tmp_path / "java" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "java" / "lib" / "server" / "classes_nocoops.jsa").touch()
    (tmp_path / "java" / "lib" / "modules").touch()
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    found = default_path(tmp_path / "java", tmp_path / "spark")
    assert found is not None
    return found


def test_by_default_the_second_run_makes_an_archive_and_later_runs_use_it(default: Path, tmp_path: Path) -> None:
    assert default.is_relative_to(tmp_path / "cache" / "odradek")
    assert ClassArchive.of({}, default) is None, "a container that runs only once makes none"
    second = ClassArchive.of({}, default)
    assert second is not None
    assert second.is_made
    second.partial.write_text("whole")
    second.is_worth_keeping = True
    second.keep(complete=True)
    third = ClassArchive.of({}, default)
    assert third is not None
    assert third.java_option == f"-XX:SharedArchiveFile={default}"
    assert default.parent.stat().st_mode & 0o777 == 0o700


def test_an_update_of_java_or_spark_makes_a_new_archive(default: Path, tmp_path: Path) -> None:
    for changed in (tmp_path / "java" / "lib" / "modules", tmp_path / "spark" / "jars"):
        before = default_path(tmp_path / "java", tmp_path / "spark")
        os.utime(changed, (1, 1))
        assert default_path(tmp_path / "java", tmp_path / "spark") != before


def test_a_java_without_a_default_archive_gets_none(default: Path, tmp_path: Path) -> None:
    (tmp_path / "java" / "lib" / "server" / "classes_nocoops.jsa").unlink()
    assert default_path(tmp_path / "java", tmp_path / "spark") is None


def test_the_setting_none_and_class_sharing_options_disable_the_archive(
    default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ClassArchive.of({}, default)
    assert ClassArchive.of({SETTING: "none"}, default) is None
    assert ClassArchive.of({"spark.driver.extraJavaOptions": "-Xshare:off"}, default) is None
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=/mine.jsa")
    assert ClassArchive.of({}, default) is None
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g")
    assert ClassArchive.of({}, default) is not None


def test_a_folder_that_other_users_may_write_to_is_not_used(default: Path) -> None:
    """Java runs the code in an archive, so no other user may be able to write it."""
    ClassArchive.of({}, default)
    default.parent.chmod(0o777)
    assert ClassArchive.of({}, default) is None


def test_without_a_cache_java_starts_without_an_archive(default: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert ClassArchive.of({}, default) is None


def test_old_unused_archives_are_deleted_when_another_is_made(default: Path) -> None:
    ClassArchive.of({}, default)
    names = ("old.jsa", "old.jsa.123", "old.seen", "new.jsa", "mine.txt")
    for name in names:
        (default.parent / name).touch()
        if name != "new.jsa":
            os.utime(default.parent / name, (1, 1))
    (default.parent / "fresh.jsa.456").touch()
    ClassArchive.of({}, default)
    kept = {file.name for file in default.parent.iterdir()}
    assert kept == {"new.jsa", "fresh.jsa.456", "mine.txt", default.with_suffix(".seen").name}


def test_a_java_that_could_not_write_an_archive_does_not_try_again(tmp_path: Path) -> None:
    settings = {SETTING: str(tmp_path / "spark.jsa")}
    archive = ClassArchive.of(settings)
    assert archive is not None
    archive.keep(complete=True)
    assert list(tmp_path.iterdir()) == [], "Spark did not run, so the result says nothing about Java"
    archive.is_worth_keeping = True
    archive.keep(complete=True)
    assert ClassArchive.of(settings) is None


@pytest.mark.slow
def test_java_uses_the_archive_that_it_has_written(tmp_path: Path) -> None:
    """With ``-Xshare:on`` Java fails to start if it cannot use the archive."""
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


class SparkStarted(Exception):
    """Raised in place of a start of Spark."""


@pytest.mark.parametrize(("writer", "is_quick"), [("workers", True), ("spark", False)])
def test_the_functions_start_java_as_the_commands_do(
    writer: str, is_quick: bool, bootstrap: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("quick")
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, numbers(1))
    asked: list[tuple[str, Any, bool]] = []

    def refuse(name: str, master: str, config: Any, *, quick_start: bool, console: bool) -> None:
        assert not console, "its output is the user's"
        asked.append((master, config, quick_start))
        raise SparkStarted

    monkeypatch.setattr(sessions, "session", refuse)
    given: dict[str, Any] = {"topics": topic, "output": tmp_path / "t", "writer": writer}
    given |= {"master": "local[1]", "conf": {SETTING: "none"}}
    with pytest.raises(SparkStarted):
        ingest(bootstrap, group=group, **given)
    with pytest.raises(SparkStarted):
        replay(bootstrap, **given)
    assert asked == [("local[1]", {SETTING: "none"}, is_quick)] * 2


@pytest.mark.slow
def test_the_function_makes_an_archive(bootstrap: str, tmp_path: Path) -> None:
    topic, path = unique("quick"), tmp_path / "cache" / "spark.jsa"
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, numbers(1))
    code = (
        "import json, sys\n"
        "from odradek.pipelines import ingest\n"
        "bootstrap, topic, output, archive = sys.argv[1:]\n"
        "conf = {'spark.odradek.class.archive': archive}\n"
        "ingest(bootstrap, topics=topic, group=output, output=output, master='local[1]', conf=conf)\n"
        "from pyspark import SparkContext\n"
        "beans = SparkContext._jvm.java.lang.management.ManagementFactory\n"
        "print(json.dumps(list(beans.getRuntimeMXBean().getInputArguments())))"
    )
    own = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}

    def run(output: str) -> list[str]:
        line = [sys.executable, "-c", code, bootstrap, topic, str(tmp_path / output), str(path)]
        ended = subprocess.run(line, capture_output=True, text=True, check=False, env=own)
        assert ended.returncode == 0, ended.stderr
        found: list[str] = json.loads(ended.stdout)
        return found

    first = run("first")
    assert "-XX:TieredStopAtLevel=1" in first
    assert any(option.startswith(f"-XX:ArchiveClassesAtExit={path}.") for option in first)
    assert path.stat().st_size > 10 << 20
    assert f"-XX:SharedArchiveFile={path}" in run("second")
