"""The access of workers to a table in an object store: the Spark settings that they get, and refused settings."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.files import s3_regions
from odradek.pipelines.files.table_folders import TableFolder, folder_of, log_options
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation, location_of
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.text.table_paths import is_uri


def far(uri: str) -> HadoopLocation:
    """A location with this URI, created without a call to Java."""
    place = HadoopLocation.__new__(HadoopLocation)
    place.uri = place.spark_uri = uri
    return place


def pickled_folder(uri: str, settings: Mapping[str, str]) -> TableFolder:
    found: TableFolder = pickle.loads(pickle.dumps(folder_of(far(uri), settings)))
    return found


def test_workers_get_the_settings_of_s3a_and_settings_of_the_bucket_have_precedence() -> None:
    settings = {
        "fs.s3a.access.key": "general",
        "fs.s3a.bucket.lake.access.key": "mine",
        "fs.s3a.secret.key": " secret ",
        "fs.s3a.endpoint": "http://127.0.0.1:9000/",
        "fs.s3a.connection.ssl.enabled": "true",
        "fs.s3a.endpoint.region": "",
    }
    folder = pickled_folder("s3a://lake/a/table", settings)
    assert (folder.scheme, folder.root, folder.uri) == ("s3", "lake/a/table", "s3a://lake/a/table")
    given = dict(folder.settings)
    assert given.pop("ssl") == "true"
    assert given.pop("region") == "us-east-1", "any region"
    assert given == {"access_key": "mine", "secret_key": "secret", "endpoint": "http://127.0.0.1:9000/"}
    assert "secret" not in repr(folder)
    assert folder.log_options == {
        "aws_access_key_id": "mine",
        "aws_secret_access_key": "secret",
        "aws_endpoint": "http://127.0.0.1:9000",
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
    }
    filesystem = folder.filesystem
    assert filesystem.type_name == "s3"
    assert folder.child("b").path("c") == "lake/a/table/b/c"


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fake Amazon that has one bucket. Returns the list of the buckets whose region was looked up."""
    asked: list[str] = []

    def resolve_region(bucket: str) -> str:
        asked.append(bucket)
        if bucket != "lake":
            raise OSError(f"Bucket '{bucket}' not found")
        return "ap-southeast-2"

    monkeypatch.setattr("pyarrow.fs.resolve_s3_region", resolve_region)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    s3_regions._amazons_region.cache_clear()
    return asked


@pytest.mark.parametrize(
    ("settings", "environment", "region"),
    [
        ({"fs.s3a.endpoint.region": "eu-west-1"}, {"AWS_REGION": "eu-west-2"}, "eu-west-1"),
        ({"fs.s3a.endpoint.region": "x", "fs.s3a.bucket.lake.endpoint.region": "eu-north-1"}, {}, "eu-north-1"),
        ({"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"}, {"AWS_REGION": "eu-west-2"}, "eu-central-1"),
        ({"fs.s3a.endpoint": "https://s3-us-west-2.amazonaws.com/"}, {}, "us-west-2"),
        ({"fs.s3a.endpoint": "s3.dualstack.eu-west-3.amazonaws.com"}, {}, "eu-west-3"),
        ({"fs.s3a.endpoint": "s3-fips.us-gov-west-1.amazonaws.com"}, {}, "us-gov-west-1"),
        ({"fs.s3a.endpoint": "s3.cn-north-1.amazonaws.com.cn"}, {}, "cn-north-1"),
        ({"fs.s3a.endpoint": "bucket.vpce-1a2b-3c.s3.us-east-2.vpce.amazonaws.com"}, {}, "us-east-2"),
        ({}, {"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-2"),
        ({}, {"AWS_DEFAULT_REGION": " eu-west-1 "}, "eu-west-1"),
        ({"fs.s3a.endpoint": "http://127.0.0.1:9000"}, {"AWS_REGION": "eu-west-2"}, "eu-west-2"),
        ({"fs.s3a.endpoint": "http://127.0.0.1:9000"}, {}, "us-east-1"),
        ({"fs.s3a.endpoint": "s3.amazonaws.com"}, {}, "ap-southeast-2"),
        ({}, {}, "ap-southeast-2"),
    ],
)
def test_the_region_of_a_bucket_comes_from_settings_or_is_looked_up(
    settings: dict[str, str], environment: dict[str, str], region: str, amazon: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    folder = pickled_folder("s3a://lake/t", settings)
    assert (dict(folder.settings)["region"], folder.log_options["aws_region"]) == (region, region)
    assert folder.filesystem.region == region
    assert amazon == (["lake"] if region == "ap-southeast-2" else [])
    assert log_options(far("s3a://lake/t"), hadoop=settings) == folder.log_options
    if settings.get("fs.s3a.endpoint") == "s3.amazonaws.com":
        assert "aws_endpoint" not in folder.log_options, "the endpoint may belong to another region"


def test_a_bucket_whose_region_is_unknown_is_refused(amazon: list[str]) -> None:
    wanted = r"region of the S3 bucket other is unknown: set spark.hadoop.fs.s3a.endpoint.region .*, or AWS_REGION"
    for find in (folder_of, lambda place, settings: log_options(place, hadoop=settings)):
        with pytest.raises(ConfigError, match=wanted):
            find(far("s3a://other/t"), {})
    # If deltalake has the region as an option, there is no lookup.
    assert log_options(far("s3a://other/t"), {"AWS_REGION": "eu-west-1"}, {})["AWS_REGION"] == "eu-west-1"
    assert amazon == ["other"] * 2
    assert log_options(far("hdfs://h/t"), {"a": "b"}, {}) == {"a": "b"}


def test_workers_get_the_settings_of_other_stores_and_hdfs_is_refused() -> None:
    folder = pickled_folder("gs://lake/table", {})
    assert (folder.scheme, folder.root) == ("gs", "lake/table")
    key = "fs.azure.account.key.mine.dfs.core.windows.net"
    folder = pickled_folder("abfss://files@mine.dfs.core.windows.net/a/table", {key: "a2V5"})
    assert (folder.scheme, folder.root) == ("abfss", "files/a/table")
    assert dict(folder.settings) == {"account_name": "mine", "account_key": "a2V5"}
    assert folder.log_options == {"azure_storage_account_name": "mine", "azure_storage_account_key": "a2V5"}
    with pytest.raises(ConfigError, match=r"workers cannot write to hdfs: choose --writer spark .* for hdfs://h/t"):
        pickled_folder("hdfs://h/t", {})


def test_a_file_uri_is_a_folder_of_this_machine() -> None:
    for uri in ("file:///tmp/a%20b", "file:/tmp/a%20b", "FILE://localhost/tmp/a%20b"):
        assert not is_uri(uri)
        place = location_of(uri, None)
        assert isinstance(place, LocalLocation)
        assert (str(place.path), place.spark_uri) == ("/tmp/a%20b", "file:///tmp/a%20b")
    assert is_uri("hdfs://h/t")
