"""A table's folder as Spark's workers write to it: on a local disk, or in an object store through pyarrow.

It is made by the driver, which has Spark's settings, and travels to the workers in a pickle. Credentials are those that
the user already has for Spark (``spark.hadoop.fs.s3a.*``, ``fs.azure.account.key.*``); without them pyarrow takes what
the environment of the process offers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.filesystems import HadoopPlace, LocalPlace, Place, sync_directory
from odradek.pipelines.s3_regions import is_central, region_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_S3A = {
    "access_key": "access.key",
    "secret_key": "secret.key",
    "session_token": "session.token",
    "region": "endpoint.region",
    "endpoint": "endpoint",
    "ssl": "connection.ssl.enabled",
}


_SCHEMES = ("s3", "s3a", "s3n", "gs", "abfss", "abfs")
_DELTA = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
}


class Settings(Protocol):
    """Hadoop's settings by name; None or empty where one is not set."""

    def get(self, name: str) -> str | None: ...


@dataclass(frozen=True)
class TableFolder:
    """``scheme`` is ``file``, ``s3``, ``gs`` or ``abfss``; ``root`` is the folder as the file system names it, and
    ``uri`` as users do."""

    scheme: str
    root: str
    uri: str
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:  # the settings hold secrets
        return f"TableFolder({self.uri!r})"

    def child(self, name: str) -> TableFolder:
        return TableFolder(self.scheme, f"{self.root}/{name}", f"{self.uri}/{name}", self.settings)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def log_options(self) -> dict[str, str]:
        """How deltalake reaches the folder: the same credentials and the same endpoint, under its names."""
        given = {_DELTA[name]: value for name, value in self.settings if name in _DELTA}
        scheme, host = _endpoint(dict(self.settings))
        if host:
            given |= {"aws_endpoint": f"{scheme}://{host}", "aws_allow_http": str(scheme == "http").lower()}
        return given

    @property
    def filesystem(self) -> FileSystem:
        return _filesystem(self.scheme, self.settings)

    def create(self, name: str) -> Any:
        """A new file, to be written; folders above it are made."""
        path = self.path(name)
        if self.scheme == "file":
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return self.filesystem.open_output_stream(path)

    def sync(self, name: str) -> None:
        """Has the disk keep a closed file, and the names of it and of the folders above it."""
        if self.scheme != "file":
            return
        path = self.path(name)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        folder = os.path.dirname(path)
        while len(folder) >= len(self.root):
            sync_directory_named(folder)
            folder = os.path.dirname(folder)

    def delete(self, name: str) -> None:
        """A file that is not there is not missed."""
        with contextlib.suppress(OSError):
            self.filesystem.delete_file(self.path(name))

    def footer(self, name: str) -> tuple[int, pq.FileMetaData]:
        """The size and the footer of a Parquet file. Raises OSError, pa.ArrowInvalid."""
        with self.filesystem.open_input_file(self.path(name)) as file:
            return file.size(), pq.read_metadata(file)

    def files(self) -> dict[str, float]:
        """The Parquet files below it by their names, and how many seconds ago each was written. Raises StorageError."""
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self.filesystem.get_file_info(FileSelector(self.root, allow_not_found=True, recursive=True))
        except OSError as error:
            raise StorageError(f"{self.uri} cannot be read: {error}") from error
        now = time.time()
        return {
            info.path.removeprefix(self.root).lstrip("/"): now - info.mtime_ns / 1e9 if info.mtime_ns else 0.0
            for info in found
            if info.type == FileType.File and info.path.endswith(".parquet")
        }


def sync_directory_named(folder: str) -> None:
    """Nothing where the folder is gone by now."""
    from pathlib import Path

    with contextlib.suppress(FileNotFoundError):
        sync_directory(Path(folder))


def folder_of(place: Place, hadoop: Settings | None = None, region: str | None = None) -> TableFolder:
    """A place as workers write to it. ``hadoop``: the settings of Spark's file systems, by default those that the place
    itself is reached with. ``region``: of its bucket, where that need not be looked for. Raises ConfigError.
    """
    if isinstance(place, LocalPlace):
        return TableFolder("file", str(place.path), place.uri)
    assert isinstance(place, HadoopPlace)
    parts = urlsplit(place.uri)
    path = place.uri.partition("://")[2].partition("/")[2]
    get = (place.settings if hadoop is None else hadoop).get
    match parts.scheme.lower():
        case "s3" | "s3a" | "s3n":
            settings = _s3_settings(get, parts.netloc, region)
            return TableFolder("s3", f"{parts.netloc}/{path}".rstrip("/"), place.uri, settings)
        case "gs":
            return TableFolder("gs", f"{parts.netloc}/{path}".rstrip("/"), place.uri)
        case "abfss" | "abfs":
            container, _, host = parts.netloc.partition("@")
            given = {"account_name": host.partition(".")[0], "account_key": get(f"fs.azure.account.key.{host}")}
            return TableFolder("abfss", f"{container}/{path}".rstrip("/"), place.uri, _told(given))
        case scheme:
            raise ConfigError(
                f"workers cannot write to {scheme}: choose --writer spark (writer='spark') for {place.uri}"
            )


def log_options(place: Place, given: Mapping[str, str] | None = None, hadoop: Settings | None = None) -> dict[str, str]:
    """How deltalake reaches a place with the settings that Spark has for it, and those ``given`` for deltalake itself,
    which win. Where only Spark writes to its scheme, deltalake has to know by itself. Raises ConfigError.
    """
    own = dict(given or {})
    if isinstance(place, LocalPlace) or urlsplit(place.uri).scheme.lower() not in _SCHEMES:
        return own
    region = next((value for name, value in own.items() if name.lower() in ("aws_region", "region")), None)
    return {**folder_of(place, hadoop, region).log_options, **own}


def _s3_settings(get: Any, bucket: str, region: str | None) -> tuple[tuple[str, str], ...]:
    """With the region of the bucket. Raises ConfigError where that is not known."""
    found = {}
    for ours, theirs in _S3A.items():
        found[ours] = get(f"fs.s3a.bucket.{bucket}.{theirs}") or get(f"fs.s3a.{theirs}")
    settings = dict(_told(found))
    host = _endpoint(settings)[1]
    settings["region"] = region or region_of(bucket, settings.get("region"), host)
    if is_central(host):
        del settings["endpoint"]
    return tuple(settings.items())


def _told(given: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.strip()) for name, value in given.items() if value and value.strip())


@functools.lru_cache(maxsize=8)
def _filesystem(scheme: str, settings: tuple[tuple[str, str], ...]) -> FileSystem:
    from pyarrow import fs

    told = dict(settings)
    match scheme:
        case "file":
            return fs.LocalFileSystem()
        case "s3":
            return _s3(told)
        case "gs":
            return fs.GcsFileSystem()
        case _:
            return fs.AzureFileSystem(**told)


def _s3(told: Mapping[str, str]) -> FileSystem:
    from pyarrow import fs

    names = ("access_key", "secret_key", "session_token", "region")
    given: dict[str, Any] = {name: told[name] for name in names if name in told}
    scheme, host = _endpoint(told)
    if host:
        given |= {"endpoint_override": host, "scheme": scheme}
    return fs.S3FileSystem(**given, allow_bucket_creation=False)


def _endpoint(settings: Mapping[str, str]) -> tuple[str, str]:
    """Scheme and host of an S3 endpoint; empty where none is set."""
    endpoint = settings.get("endpoint", "")
    if not endpoint:
        return "", ""
    scheme, _, host = endpoint.rpartition("://")
    return scheme or ("http" if settings.get("ssl", "true").lower() == "false" else "https"), host.rstrip("/")


UNREADABLE = (OSError, pa.ArrowInvalid)
"""What ``footer`` raises of a file that is not there or is not whole."""
