"""The conversion of a lone broker's directory into that of a broker of a cluster, after its decision.

``broker/repair/node_conversion`` prepares everything beside the present files: the controller's directory, whose
``meta.properties`` has another name, and the broker's new copy of the metadata log. Then it writes the file
``node-conversion``. Without this file the directory is still that of the lone broker. With it, the conversion is
decided: ``finish`` gives the prepared files their names. A crash may come between any two steps, and ``finish`` goes
on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from odradek.broker.metadata_log import bootstrap
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.core.errors import StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.checkpoints import CONVERSION
from odradek.storage.disk.files import Files

PREPARED_COPY = "node-conversion-metadata"
"""The broker's new copy of the metadata log, before it has its name."""
FORMER_LOG = "metadata-of-lone-broker"
"""The metadata log of the lone broker, afterwards. Nothing reads it."""
UNFINISHED_PROPERTIES = f"{checkpoints.META_PROPERTIES}.unfinished"


class DecidedConversion(NamedTuple):
    """``broker_epoch``: that of the broker's first registration. ``was_clean``: whether the lone broker had stopped
    cleanly: then its next stop as a broker of a cluster counts as clean, too."""

    controller_dir: Path
    broker_epoch: int
    was_clean: bool

    def packed(self) -> bytes:
        fields = {"version": 1, **self._asdict(), "controller_dir": str(self.controller_dir)}
        return json.dumps(fields).encode()


def decided(data_dir: Path, files: Files) -> DecidedConversion | None:
    """Returns the conversion that is not finished; None without one. Raises StorageError if its file is damaged."""
    path = data_dir / CONVERSION
    if not files.exists(path):
        return None
    try:
        fields = json.loads(files.read(path))
        return DecidedConversion(Path(fields["controller_dir"]), int(fields["broker_epoch"]), bool(fields["was_clean"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: put the directory back from a copy") from error


def finish(data_dir: Path, files: Files, now_ms: int) -> bool:
    """Finishes a decided conversion. Returns whether there was one. The caller has the lock of the directory.

    Raises StorageError if the controller's directory is missing, OSError."""
    found = decided(data_dir, files)
    if found is None:
        return False
    _finish_controller(data_dir, found.controller_dir, files)
    copy, log, former = data_dir / PREPARED_COPY, data_dir / DIRECTORY, data_dir / FORMER_LOG
    if files.list(copy):
        if files.list(log):
            files.rename(log, former)
            files.sync_dir(data_dir)
        files.rename(copy, log)
        files.sync_dir(data_dir)
    if files.exists(data_dir / metadata_mark.FILE):
        files.make_dirs(former, private=True)  # it is missing if the lone broker had an empty log
        files.rename(data_dir / metadata_mark.FILE, former / metadata_mark.FILE)
    if found.was_clean:
        checkpoints.write_clean_shutdown(data_dir, files, found.broker_epoch)
    bootstrap.write(data_dir, files, now_ms)
    files.sync_dir(data_dir)
    files.remove(data_dir / CONVERSION)
    files.sync_dir(data_dir)
    return True


def _finish_controller(data_dir: Path, controller_dir: Path, files: Files) -> None:
    unfinished, properties = controller_dir / UNFINISHED_PROPERTIES, controller_dir / checkpoints.META_PROPERTIES
    if files.exists(unfinished):
        files.rename(unfinished, properties)
        files.sync_dir(controller_dir)
    elif not files.exists(properties):
        raise StorageError(
            f"{data_dir} becomes the directory of a broker of a cluster, but that of the controller, {controller_dir}, "
            "is not there: put it back to this place"
        )
