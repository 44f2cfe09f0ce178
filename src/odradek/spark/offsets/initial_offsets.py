"""Checkpoints of Spark's own Kafka source: the start offsets of a micro-batch that this source has not planned. Pure.

Spark's own source writes the start of its first micro-batch to ``sources/<number>/0`` in the checkpoint, once, and the
ends of micro-batches to the offset log (``KafkaMicroBatchStream.getOrCreateInitialPartitionOffsets``). This source has
both in the offset log. A first micro-batch that Spark's own source has planned and not finished is run again, so its
start has to come from there. In a later micro-batch, Spark's own source reads a new partition from its beginning.
"""

from __future__ import annotations

import json
from dataclasses import replace

from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.spark.offsets.source_offset import EXTRA, Offsets, SourceOffset, flat
from odradek.text.json_depth import parse_json
from odradek.text.printable import one_line

_VERSION = "v1"
_NO_SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
"""The metadata of a micro-batch. Settings that are not there have the session's value, or that of early versions."""
_SOURCES_LINE = 2
"""The lines of a file of the offset log: the version, the metadata, and one line for each source."""


class UnknownStart(OdradekError):
    """The checkpoint has the end of a micro-batch and not its start."""


def parse_initial(data: bytes) -> Offsets:
    """Reads ``sources/<number>/0`` of Spark's own Kafka source: a byte, which Spark ignores, then ``v1``, a line feed
    and JSON. Files of Spark 2.1.0 have no version. Raises UnknownStart."""
    text = data[1:].decode(errors="replace")
    if text.startswith("v"):
        version, _, text = text.partition("\n")
        if version != _VERSION:
            raise UnknownStart(f"its version is {version!r}, and only {_VERSION} is known")
    try:
        found: Offsets = flat(parse_json(text), int)
    except (AttributeError, TypeError, ValueError) as error:
        raise UnknownStart(f"it has no offsets of Spark's own Kafka source: {one_line(error)}") from error
    if not found or min(found.values()) < 0:
        raise UnknownStart("it has no offset of a partition, or a negative one")
    return found


def empty_log(sources: int) -> str:
    """Returns the text of a file of the offset log in which no source has an offset."""
    return "\n".join([_VERSION, _NO_SETTINGS, *["-"] * sources])


def line_without_start(log: str, number: int) -> SourceOffset | None:
    """Returns the end of the first micro-batch of a source, if another source has planned it.

    ``log``: the text of the file ``0`` of the offset log. ``number``: that of the source in the query.
    """
    lines = log.split("\n")
    if lines[0] != _VERSION or len(lines) <= _SOURCES_LINE + number:
        return None
    try:
        value = parse_json(lines[_SOURCES_LINE + number])
        return None if not value or EXTRA in value else SourceOffset.from_json(value)
    except (OdradekError, AttributeError, TypeError, ValueError):  # "-" if the source had no offset yet
        return None


def with_start(log: str, number: int, end: SourceOffset, initial: Offsets) -> str:
    """Returns the text of the offset log with the start of a source's first micro-batch. ``end``: of
    ``line_without_start``; if it has no partition, the micro-batch ends where it starts. Raises UnknownStart if
    ``initial`` has none of the partitions."""
    ends = end.positions or initial
    origins = {tp: offset for tp, offset in initial.items() if tp in ends}
    if not origins:
        raise UnknownStart("it has none of the partitions of the micro-batch")
    lines = log.split("\n")
    planned = replace(end, positions=ends, origins=origins)
    lines[_SOURCES_LINE + number] = json.dumps(planned.to_json(), separators=(",", ":"))
    return "\n".join(lines)


def without_start(start: SourceOffset, end: SourceOffset) -> set[TopicPartition]:
    """Returns the partitions of a micro-batch whose start offset the checkpoint does not have. They are new in it.

    Raises UnknownStart if that is every partition of the query's first micro-batch.
    """
    # Nothing is below offset 0, so there its start does not matter.
    unknown = {
        tp for tp, offset in end.positions.items() if offset > 0 and tp not in end.origins and tp not in start.positions
    }
    if unknown and not start.positions and not end.origins:
        raise UnknownStart(
            "the checkpoint's first micro-batch was planned by another source and not finished, and its start offsets "
            "are unknown: call odradek.spark.register(spark) before the query starts, which reads them from the "
            'checkpoint\'s file sources/0/0; if the file is missing, finish the micro-batch with format("kafka"), or '
            "begin a new checkpoint and output with startingOffsets"
        )
    return unknown
