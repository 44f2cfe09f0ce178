"""The start of a query with a checkpoint of Spark's own Kafka source that has finished no micro-batch.

The planner does not know the checkpoint's folder: Spark does not pass it to Python. So the driver reads the start of
the micro-batch (``initial_offsets``) and writes it to the offset log, before Spark reads that. Spark calls listeners
in the query's thread and waits for them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from odradek.spark.driver.query_sources import source_options
from odradek.spark.offsets.initial_offsets import UnknownStart, empty_log, line_without_start, parse_initial, with_start
from odradek.spark.offsets.source_offset import SourceOffset

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

log = logging.getLogger("odradek.spark")


def complete_first_batch(execution: JavaObject) -> None:
    """Writes the start offsets of a first micro-batch that is not finished to the offset log, if they are not there. If
    Spark's own source has not planned it, plans one without records that ends at these offsets.

    ``execution`` is Java's StreamExecution. Does nothing for other checkpoints than those of Spark's own Kafka source.
    If the start is unknown, it logs a warning: the planner then refuses a planned micro-batch. Raises Py4JError.
    """
    checkpoint = _CheckpointFiles(execution)
    # Only Spark's own sources write this folder, so a checkpoint of ours needs no further look.
    if not checkpoint.has("sources") or checkpoint.has("commits/0") or checkpoint.has("offsets/1"):
        return
    options_of = source_options(execution)
    is_planned = checkpoint.has("offsets/0")
    before = checkpoint.read("offsets/0").decode() if is_planned else empty_log(len(options_of))
    text = before
    for number, options in enumerate(options_of):
        if options is None:
            continue
        end = line_without_start(text, number) if is_planned else SourceOffset()
        name = f"sources/{number}/0"
        if end is None or not checkpoint.has(name):
            continue
        try:
            text = with_start(text, number, end, parse_initial(checkpoint.read(name)))
        except UnknownStart as error:
            log.warning("%s/%s has the start of the query's first micro-batch: %s", checkpoint.root, name, error)
    if text != before:
        checkpoint.replace("offsets/0", text.encode())


class _CheckpointFiles:
    """The files of a query's checkpoint, by Spark's own access to them."""

    def __init__(self, execution: JavaObject) -> None:
        from pyspark import SparkContext

        self.root: str = execution.resolvedCheckpointRoot()
        self._files: JavaObject = execution.offsetLog().fileManager()
        self._jvm: JavaObject = SparkContext._jvm

    def _path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}")

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def read(self, name: str) -> bytes:
        stream = self._files.open(self._path(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def replace(self, name: str, data: bytes) -> None:
        """Writes or replaces a file in one step."""
        stream = self._files.createAtomic(self._path(name), True)  # it may replace a file
        try:
            stream.write(bytearray(data))
        except Py4JError:
            stream.cancel()
            raise
        stream.close()
