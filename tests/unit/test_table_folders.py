"""How workers reach a table in an object store: what they are told of Spark's settings, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.places import HadoopPlace, LocalPlace, is_uri, place_of
from odradek.pipelines.table_folders import TableFolder, folder_of


def far(uri: str) -> HadoopPlace:
    """A place by name: nothing is asked of Java."""
    place = HadoopPlace.__new__(HadoopPlace)
    place.uri = place.spark_uri = uri
    return place


def told(uri: str, settings: Mapping[str, str]) -> TableFolder:
    found: TableFolder = pickle.loads(pickle.dumps(folder_of(far(uri), settings)))
    return found


def test_settings_of_s3a_go_to_the_workers_those_of_the_bucket_first() -> None:
    settings = {
        "fs.s3a.access.key": "general",
        "fs.s3a.bucket.lake.access.key": "mine",
        "fs.s3a.secret.key": " secret ",
        "fs.s3a.endpoint": "http://127.0.0.1:9000/",
        "fs.s3a.connection.ssl.enabled": "true",
        "fs.s3a.endpoint.region": "",
    }
    folder = told("s3a://lake/a/table", settings)
    assert (folder.scheme, folder.root, folder.uri) == ("s3", "lake/a/table", "s3a://lake/a/table")
    given = dict(folder.settings)
    assert given.pop("ssl") == "true"
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


def test_other_stores() -> None:
    folder = told("gs://lake/table", {})
    assert (folder.scheme, folder.root) == ("gs", "lake/table")
    key = "fs.azure.account.key.mine.dfs.core.windows.net"
    folder = told("abfss://files@mine.dfs.core.windows.net/a/table", {key: "a2V5"})
    assert (folder.scheme, folder.root) == ("abfss", "files/a/table")
    assert dict(folder.settings) == {"account_name": "mine", "account_key": "a2V5"}
    assert folder.log_options == {"azure_storage_account_name": "mine", "azure_storage_account_key": "a2V5"}
    with pytest.raises(ConfigError, match=r"workers cannot write to hdfs: choose --writer spark .* for hdfs://h/t"):
        told("hdfs://h/t", {})


def test_a_file_uri_is_a_folder_of_this_machine() -> None:
    for uri in ("file:///tmp/a%20b", "file:/tmp/a%20b", "FILE://localhost/tmp/a%20b"):
        assert not is_uri(uri)
        place = place_of(uri, None)
        assert isinstance(place, LocalPlace)
        assert (str(place.path), place.spark_uri) == ("/tmp/a%20b", "file:///tmp/a%20b")
    assert is_uri("hdfs://h/t")
