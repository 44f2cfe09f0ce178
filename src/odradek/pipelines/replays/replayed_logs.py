"""The logs that earlier runs of a replay have read: whether they still have the records that are in the table.

If the data directory of a broker is put back from an older copy, other records stand at offsets that the table notes as
added. The runs after that would leave them out. The evidence is the log's end, and the newest record below the last
noted offset that the log still has and that is a row of this replay, too (``files/log_rows``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.client.admin import Admin
from odradek.core.ids import LATEST, TopicPartition
from odradek.pipelines.commit.state import Piece, key_of
from odradek.pipelines.files.log_rows import LogRows
from odradek.pipelines.sources import with_short_timeouts
from odradek.spark.offsets import data_loss
from odradek.spark.options import parse_options

if TYPE_CHECKING:
    from odradek.pipelines.replays.input import Replay
    from odradek.pipelines.tables.table import Table

_READ_ON = (
    "Put the newer directory back; or find the first new record by its time, and replay from there with other options "
    "(--from, or --offsets). --option failOnDataLoss=false goes on with the records after these"
)


def check_replayed_logs(job: Replay, table: Table, query: str, done: Iterable[Piece]) -> None:
    """Compares the logs with what the table has of a replay. ``query``: the replay. ``done``: the ranges that its runs
    have added. Raises DataLoss, or logs a warning with ``failOnDataLoss=false``. Raises the errors of lookups and of
    the table."""
    read: dict[TopicPartition, int] = {}
    wanted = {piece.partition for piece in job.found.ranges}
    for tp, _, end in done:
        if tp in wanted:
            read[tp] = max(end, read.get(tp, 0))
    if not read:
        return
    topics = ",".join(sorted({tp.topic for tp in read}))
    given = {"kafka.bootstrap.servers": job.bootstrap, "subscribe": topics, **job.options}
    options = parse_options(given, streaming=False)
    with Admin(with_short_timeouts(options.client)) as admin:
        ends = {tp: one.offset for tp, one in admin.list_offsets(dict.fromkeys(read, LATEST)).items()}
    short = [data_loss.replayed_beyond_message(tp, at, ends[tp], _READ_ON) for tp, at in read.items() if ends[tp] < at]
    data_loss.fail_or_warn(sorted(short), fail=options.fail_on_data_loss, file=options.losses_to)
    files = re.compile(rf"{re.escape(key_of(query))}-[^/]*")
    rows = LogRows(options, dict(job.found.ids), lambda spans: table.marks(spans, files), _READ_ON)
    rows.check({tp: at for tp, at in read.items() if ends[tp] >= at})
