"""The format of Delta tables: the package deltalake writes their log."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from odradek.core.extras import command_of
from odradek.pipelines.commit.notes import STATE
from odradek.pipelines.formats.exclusive_stores import is_s3, no_exclusive_create
from odradek.pipelines.formats.table_description import staging_of
from odradek.pipelines.formats.table_format import TableFormat, TargetOptions
from odradek.pipelines.values.arguments import wrong
from odradek.text.table_paths import DELTA_LOG, delta_uri

if TYPE_CHECKING:
    from odradek.pipelines.delta.table import DeltaTable
    from odradek.pipelines.filesystems.location import Location

_PROVIDER = "AWS_S3_LOCKING_PROVIDER"
"""deltalake's option for a lock of commits on S3, also from the environment. Its only value is ``dynamodb``."""


class DeltaFormat(TableFormat):
    """Files and folders as those of Parquet tables, and Delta's log."""

    name, title = "delta", "Delta"
    log_folder, is_log_name_unique = DELTA_LOG, True
    options = ("storage_options",)
    settings = "Delta takes settings of the package deltalake, --storage-option NAME=VALUE"

    def check_installed(self) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise wrong("table_format", f" delta needs deltalake: {command_of('lake')}")

    def check_output(self, output: str) -> None:
        delta_uri(output)

    def check_exclusive(self, state: Location, storage_options: Mapping[str, str]) -> None:
        """Delta has an exclusive create of its own, but on S3 it is the same ``If-None-Match``, which a store may
        ignore. Then deltalake takes a lost commit for its own."""
        if not is_s3(state) or _has_lock(storage_options):
            return
        if state.can_create() is False:
            lock = f", or give --storage-option {_PROVIDER}=dynamodb, a lock that all writers must use"
            raise no_exclusive_create(state, lock)

    def opener(self, target: TargetOptions, location: Location) -> Callable[[str], DeltaTable]:
        self.check_installed()
        from odradek.pipelines.delta.table import DeltaTable
        from odradek.pipelines.files.table_folders import log_options

        options = log_options(location, target.storage_options)
        has_lock = _has_lock(options)
        has_log = DeltaTable(location, location.child(STATE), options=options).check_log()

        def opened(run: str) -> DeltaTable:
            staging = staging_of(location)
            parts = target.partition_by
            return DeltaTable(location, staging, parts, options, run, has_log=has_log, has_lock=has_lock)

        return opened


def _has_lock(options: Mapping[str, str]) -> bool:
    given = next((value for name, value in options.items() if name.upper() == _PROVIDER), None)
    return (os.environ.get(_PROVIDER, "") if given is None else given) == "dynamodb"


FORMAT = DeltaFormat()
