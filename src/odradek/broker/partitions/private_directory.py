"""The modes of a data directory: what has credentials is for the broker's user alone.

Credentials are in the metadata log, because any client with the right to alter them may store some, whatever the
listeners are. So its folder and files are closed at each start. The whole data directory is closed while the
catalogue has credentials.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.broker.metadata_log.log import DIRECTORY as METADATA_DIRECTORY
from odradek.catalog.state import BROKER
from odradek.core.deferred import Deferred
from odradek.core.errors import StorageError

if TYPE_CHECKING:
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.catalog.delta import Delta
    from odradek.storage.disk.files import Files

log = logging.getLogger("odradek.broker")

_LOG_DIRECTORY = re.compile(r".+-(\d+|delete|stray)")
InThread = Callable[[Callable[[], None]], Deferred[BaseException | None]]


class PrivateDirectory:
    """Publisher that closes a data directory to other users when the catalogue has credentials."""

    def __init__(self, directory: LogDirectory, in_thread: InThread) -> None:
        self._path = directory.path
        self._files = directory.files
        self._in_thread = in_thread
        self._is_closed = False

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Raises StorageError at the start if the directory has credentials and cannot be closed."""
        if delta.is_initial:
            self._close_metadata_log()
        if self._is_closed or not _alters_credentials(delta) or not has_credentials(image):
            return
        self._is_closed = True
        if delta.is_initial:
            close_to_others(self._path, self._files)
        else:
            self._in_thread(self._close).then(_report)

    def _close(self) -> None:
        close_to_others(self._path, self._files)

    def _close_metadata_log(self) -> None:
        """Closes the metadata log and its copies that a repair has made."""
        path = self._path / METADATA_DIRECTORY
        try:
            for name in self._files.list(self._path):
                if name.startswith(METADATA_DIRECTORY):
                    path = self._path / name
                    self._files.make_private(path)
        except OSError as error:
            log.warning("others can read %s, and its mode cannot be changed: %s", path, error.strerror or error)


def close_to_others(directory: Path, files: Files) -> None:
    """Allows only its owner to use a data directory: it has credentials. Raises StorageError.

    The directory is last, so its mode shows whether an earlier run has closed everything in it."""
    try:
        if not files.is_private(directory):
            for name in files.list(directory):
                if _LOG_DIRECTORY.fullmatch(name):  # a user may have other directories beside them
                    files.make_private(directory / name)
            files.make_private(directory)
            log.warning("%s has credentials of users: only its owner can enter it now", directory)
    except OSError as error:
        raise StorageError(
            f"{directory}: others can enter it, it has credentials, and its mode cannot be changed: "
            f"{error.strerror or error}; let it belong to the broker's user, or choose another directory"
        ) from error


def has_credentials(image: CatalogView) -> bool:
    """Returns whether the catalogue has users of SCRAM, delegation tokens, or settings of brokers that are secret."""
    if image.users() or image.tokens():
        return True
    resources = image.configured_resources(BROKER)
    return any(_is_secret(name) for resource in resources for name in image.configs(BROKER, resource))


def _is_secret(name: str) -> bool:
    from odradek.broker.settings.keys import dynamic_broker_key  # few directories have settings of brokers

    return dynamic_broker_key(name).sensitive


def _alters_credentials(delta: Delta) -> bool:
    return bool(delta.users or delta.tokens) or any(kind == BROKER for kind, _ in delta.configs)


def _report(error: BaseException | None) -> None:
    if error is not None:
        log.error("%s", error, exc_info=None if isinstance(error, StorageError) else error)
