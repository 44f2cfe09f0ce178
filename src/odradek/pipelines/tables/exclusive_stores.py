"""Whether a store lets only one of two pipelines publish an entry of a table's log (docs/notes/exclusive-create.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from odradek.core.errors import ConfigError
from odradek.pipelines.filesystems import Location

_S3 = ("s3", "s3a", "s3n")
_PROVIDER = "AWS_S3_LOCKING_PROVIDER"
"""deltalake's option for a lock of commits on S3, also from the environment. Its only value is ``dynamodb``."""


def check_exclusive(state: Location, table_format: str, options: Mapping[str, str], *, is_single: bool) -> None:
    """Raises ConfigError if two pipelines could publish one entry of a table's log.

    ``state``: the folder of the table's notes. ``options``: deltalake's. ``is_single``: the user has stated that no
    other program writes to the table.

    Delta has an exclusive create of its own, but on S3 it is the same ``If-None-Match``, which a store may ignore. Then
    deltalake takes a lost commit for its own.
    """
    if table_format == "iceberg":  # the catalogue changes a table by compare-and-set
        return
    is_delta = table_format == "delta"
    if is_single or (is_delta and (not _is_s3(state) or _has_lock(options))):
        return
    can_create = state.can_create()
    if can_create or (can_create is None and is_delta):
        return
    lock = f", or give --storage-option {_PROVIDER}=dynamodb, a lock that all writers must use" if is_delta else ""
    table = state.uri.rpartition("/")[0]
    formats = ", with Parquet and with Delta. Give" if _is_s3(state) else ". Use --table-format delta, or give"
    raise ConfigError(
        f"{table}: this store has no exclusive create (S3 needs Hadoop 3.4.2 or newer, and a store that knows "
        f"If-None-Match), so two pipelines at once could damage the table{formats} --single-driver if no other program "
        f"writes to the table{lock}"
    )


def _is_s3(location: Location) -> bool:
    return urlsplit(location.uri).scheme.lower() in _S3


def _has_lock(options: Mapping[str, str]) -> bool:
    given = next((value for name, value in options.items() if name.upper() == _PROVIDER), None)
    return (os.environ.get(_PROVIDER, "") if given is None else given) == "dynamodb"
