"""Which tables need a store with an exclusive create: Parquet everywhere, and Delta on S3 unless it has a lock."""

from __future__ import annotations

from typing import Any, cast

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.table_format import format_of

LOCK = "AWS_S3_LOCKING_PROVIDER"


class Store:
    """``is_exclusive`` None: Hadoop is too old to test it."""

    def __init__(self, uri: str, *, is_exclusive: bool | None) -> None:
        self.uri, self.is_exclusive = f"{uri}/_odradek", is_exclusive

    def can_create(self) -> bool | None:
        return self.is_exclusive


def check(uri: str, kind: str, *, is_exclusive: bool | None = False, **options: str) -> None:
    format_of(kind).check_exclusive(cast(Location, Store(uri, is_exclusive=is_exclusive)), options)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("scheme", ["s3", "s3a", "S3N"])
def test_a_store_that_ignores_the_header_is_refused(scheme: str, kind: str, monkeypatch: Any) -> None:
    monkeypatch.delenv(LOCK, raising=False)
    with pytest.raises(ConfigError) as refused:
        check(f"{scheme}://b/t", kind)
    assert str(refused.value).startswith(f"{scheme}://b/t: this store has no exclusive create")
    assert "--single-driver" in str(refused.value)
    assert "--table-format delta" not in str(refused.value), "Delta loses commits there, too"
    assert (LOCK in str(refused.value)) == (kind == "delta")
    check(f"{scheme}://b/t", kind, is_exclusive=True)


def test_a_lock_of_deltalake_makes_commits_exclusive(monkeypatch: Any) -> None:
    monkeypatch.delenv(LOCK, raising=False)
    check("s3://b/t", "delta", **{LOCK.lower(): "dynamodb"})
    for wrong in ({LOCK: "none"}, {"DYNAMO_LOCK_TABLE_NAME": "t"}):
        with pytest.raises(ConfigError):
            check("s3://b/t", "delta", **wrong)
    with pytest.raises(ConfigError):
        check("s3://b/t", "parquet", **{LOCK: "dynamodb"})
    monkeypatch.setenv(LOCK, "dynamodb")
    check("s3://b/t", "delta")
    with pytest.raises(ConfigError):
        check("s3://b/t", "delta", **{LOCK: "none"})


def test_delta_on_azure_and_gcs_has_an_exclusive_create_of_its_own() -> None:
    for uri in ("gs://b/t", "abfss://c@a.dfs.core.windows.net/t"):
        check(uri, "delta")
        with pytest.raises(ConfigError, match=r"could damage the table\. Use --table-format delta, or give"):
            check(uri, "parquet")


def test_delta_on_s3_is_used_with_a_hadoop_that_cannot_test_the_store() -> None:
    """deltalake sends the header itself, whatever Hadoop can do; Parquet needs Hadoop's."""
    check("s3a://b/t", "delta", is_exclusive=None)
    with pytest.raises(ConfigError):
        check("s3a://b/t", "parquet", is_exclusive=None)


def test_iceberg_needs_no_exclusive_create() -> None:
    check("s3a://b/t", "iceberg", is_exclusive=None)
    check("s3a://b/t", "iceberg")
