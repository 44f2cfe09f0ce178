"""Stores that let only one of two pipelines publish an entry of a table's log (docs/notes/exclusive-create.md)."""

from __future__ import annotations

from urllib.parse import urlsplit

from odradek.core.errors import ConfigError
from odradek.pipelines.filesystems.location import Location

_S3 = ("s3", "s3a", "s3n")


def is_s3(location: Location) -> bool:
    """Returns whether a folder is in an object store with the interface of S3."""
    return urlsplit(location.uri).scheme.lower() in _S3


def no_exclusive_create(state: Location, also: str = "") -> ConfigError:
    """Returns the error of a store in which two pipelines could publish one entry. ``state``: the folder of the table's
    notes. ``also``: a further remedy."""
    table = state.uri.rpartition("/")[0]
    formats = ", with Parquet and with Delta. Give" if is_s3(state) else ". Use --table-format delta, or give"
    return ConfigError(
        f"{table}: this store has no exclusive create (S3 needs Hadoop 3.4.2 or newer, and a store that knows "
        f"If-None-Match), so two pipelines at once could damage the table{formats} --single-driver if no other program "
        f"writes to the table{also}"
    )
