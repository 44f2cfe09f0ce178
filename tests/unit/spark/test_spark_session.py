"""The settings of a session, its log, and the error of a Spark that does not start."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.queries import start_spark
from odradek.spark import session as spark_session


def test_the_callers_settings_have_precedence_and_java_options_are_combined(tmp_path: Path) -> None:
    settings = spark_session._settings(
        "app", "local[2]", {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=y"}, tmp_path
    )
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dx=y")
    assert "-Dlog4j2.configurationFile=file:" in settings["spark.driver.extraJavaOptions"]
    assert spark_session.UNCHECKED_ARROW in settings["spark.driver.extraJavaOptions"].split()
    assert "spark.executor.extraJavaOptions" not in settings, "local mode has no executors"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    cluster = spark_session._settings(
        "app", "spark://host:7077", {"spark.executor.extraJavaOptions": "-Dy=z"}, tmp_path
    )
    assert cluster["spark.executor.extraJavaOptions"].split() == [spark_session.UNCHECKED_ARROW, "-Dy=z"]
    assert "spark.driver.host" not in cluster, (
        "workers on other machines could not reach a driver on the loopback address"
    )


def test_the_quick_start_applies_only_to_drivers_whose_java_processes_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, given = "spark.driver.extraJavaOptions", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    quick = spark_session._settings("app", "local[2]", given, tmp_path, [spark_session.QUICK_START])[name].split()
    assert quick[-2:] == [spark_session.QUICK_START, "-XX:TieredStopAtLevel=4"], (
        "Java uses the caller's value, because it is the last"
    )
    assert spark_session.QUICK_START not in spark_session._settings("app", "local[2]", {}, tmp_path)[name].split()

    asked: list[bool] = []
    monkeypatch.setattr(spark_session, "session", lambda *names, quick_start, **more: asked.append(quick_start))
    for writer in ("", "spark", "workers"):
        start_spark("local[2]", writer=writer)
    assert asked == [False, False, True]


def test_the_reason_of_a_failed_start_is_found_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert spark_session._last_error(str(log)) is None
    log.write_text(
        "26/01/31 12:00:00 WARN Client: Failed to connect\n"
        "26/01/31 12:00:01 ERROR Backend: All masters are unresponsive! Giving up.\n"
        "26/01/31 12:00:02 ERROR SparkContext: Error initializing SparkContext.\njava.lang.X: Y\n\tat a.b(C.java)\n"
    )
    assert spark_session._last_error(str(log)) == "Backend: All masters are unresponsive! Giving up."
    assert spark_session._tail(log) == (
        "26/01/31 12:00:01 ERROR Backend: All masters are unresponsive! Giving up."
        " | 26/01/31 12:00:02 ERROR SparkContext: Error initializing SparkContext. | java.lang.X: Y"
    )
    log.write_text("WARNING: Using incubator modules: jdk.incubator.vector\n")
    assert spark_session._tail(log) == "WARNING: Using incubator modules: jdk.incubator.vector"


class Context:
    """A SparkContext that records a stop."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Refusing:
    """A builder of a session that Spark refuses. ``begun`` is the context that is active after the refusal."""

    def __init__(self, begun: Context) -> None:
        self.begun = begun

    def config(self, name: str, value: str) -> Refusing:
        return self

    def getOrCreate(self) -> None:
        import pyspark
        from pyspark.errors import PySparkException

        pyspark.SparkContext._active_spark_context = self.begun
        raise PySparkException("Could not parse Master URL: 'x'")


@pytest.mark.parametrize("is_running", [True, False])
def test_a_refused_setting_stops_only_the_context_that_began_with_it(
    monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    import pyspark
    from pyspark.errors import PySparkException

    context = Context()
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", context if is_running else None)
    monkeypatch.setattr("pyspark.sql.SparkSession", SimpleNamespace(builder=Refusing(context)))
    with pytest.raises(PySparkException if is_running else ConfigError, match=r"Master URL|expected local"):
        spark_session._get_session({"spark.master": "x"})
    assert context.is_stopped is not is_running


@pytest.mark.parametrize(
    "master", ["nosuch", "local[", "local[x]", "local[2,]", "", "spark:/h", "127.0.0.1:7077", "a b"]
)
def test_a_text_that_names_no_master_is_refused_before_java_starts(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.delenv(spark_session._SUBMITTED, raising=False)
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)
    monkeypatch.setattr(spark_session, "find_java", lambda java: pytest.fail("Java is looked for"))
    with pytest.raises(ConfigError, match=f"master '{re.escape(master)}': expected local"):
        spark_session.session("app", master=master)
    with pytest.raises(ConfigError, match=f"master '{re.escape(master)}': expected local"):
        spark_session.session("app", config={"spark.master": master})


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[2]",
        "local[*]",
        "local[*, 3]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://h:7077",
        "k8s://https://h",
    ],
)
def test_the_masters_of_spark_are_accepted(master: str) -> None:
    spark_session.check_master(master)


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


def test_java_gets_the_encoding_of_names_that_python_has() -> None:
    assert (
        spark_session.locale_of_java({"LC_ALL": "C"})
        == spark_session.locale_of_java({"LC_ALL": "POSIX"})
        == {"LC_ALL": "C.UTF-8"}
    )
    for has_its_own in ({}, {"LC_ALL": ""}, {"LC_ALL": "de_DE.UTF-8"}, {"LANG": "C"}):  # Python changes LANG itself
        assert spark_session.locale_of_java(has_its_own) == {}
