"""The Spark home without ``pyspark.zip``: its use and its contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.spark.startup import spark_home as homes
from odradek.spark.startup.spark_home import spark_home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "cache" / "odradek" / "spark-home"


@pytest.fixture(scope="module")
def sparks_own() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def test_the_home_has_sparks_directories_and_no_zip_files(cache: Path, sparks_own: Path) -> None:
    home = spark_home("local[2]")
    assert home.parent == cache
    assert (home / "jars").resolve() == (sparks_own / "jars").resolve()
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "python").iterdir()) == []
    assert not (home / "sql").exists(), "the directory is a part of the Python package"


def test_the_next_session_uses_the_same_home(cache: Path) -> None:
    assert spark_home("local") == spark_home("local[4]")
    assert len(list(cache.iterdir())) == 1


def test_a_home_that_another_process_created_first_is_kept(cache: Path) -> None:
    first = spark_home("local")
    homes._make(first, [first / "bin"])
    assert [folder.name for folder in cache.iterdir()] == [first.name]
    assert (first / "jars").exists()


def test_a_cluster_and_a_users_own_home_are_not_changed(
    cache: Path, sparks_own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert spark_home("spark://127.0.0.1:7077") == sparks_own
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_home("local") == tmp_path
    assert not cache.exists()


def test_a_cache_that_other_users_may_write_to_is_not_used(cache: Path, sparks_own: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert spark_home("local") == sparks_own


def test_a_cache_that_cannot_be_created_is_not_used(cache: Path, sparks_own: Path) -> None:
    cache.parent.parent.write_text("no folder")
    assert spark_home("local") == sparks_own


def test_a_pyspark_found_only_by_pythonpath_keeps_its_home(
    cache: Path, sparks_own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert spark_home("local") == sparks_own
