"""The plan of the micro-batch that Spark runs, compared with the one in the checkpoint.

A run removes a plan that the output does not have, if the group was reset after it
(``checkpoint.drop_overruled_plan``). Another run, which was paused meanwhile, may have that plan in its memory. It
would write the rows of this plan, and note the offsets of the plan that is in the checkpoint now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.core.errors import StorageError
from odradek.pipelines.checkpoint import newest_done, newest_number, text_in
from odradek.pipelines.filesystems.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS_LINES = 2


@dataclass(frozen=True)
class OwnPlan:
    """What a run knows of the plans of its query. ``batch``, ``text``: the micro-batch that Spark repeats first, and
    its file in the checkpoint; None if Spark repeats none."""

    checkpoint: Location
    batch: int | None = None
    text: str | None = None

    @classmethod
    def of(cls, checkpoint: Location) -> OwnPlan:
        """To be called before the query begins. Raises StorageError."""
        done, newest = newest_done(checkpoint), newest_number(checkpoint)
        if newest is None or newest == done:
            return cls(checkpoint)
        return cls(checkpoint, newest, text_in(checkpoint, f"offsets/{newest}"))

    def check(self, spark: SparkSession, batch: int) -> None:
        """To be called in a micro-batch, after its plan was read from the checkpoint. Raises StorageError if the
        checkpoint has another plan than Spark runs."""
        now = text_in(self.checkpoint, f"offsets/{batch}")
        if batch == self.batch:
            is_same = now == self.text
        else:
            ends = _ends_in_memory(spark, batch)
            is_same = ends is None or (now is not None and now.splitlines()[_SETTINGS_LINES:] == ends)
        if not is_same:
            raise StorageError(
                f"the checkpoint {self.checkpoint.uri} has another plan of micro-batch {batch} than this run: another "
                "run has replaced it, as it does after a reset of the group, or another copy of the checkpoint was put "
                "back. So this run has added nothing for it. If another run is active, leave it alone; if not, run the "
                "command again"
            )


def _ends_in_memory(spark: SparkSession, batch: int) -> list[str] | None:
    """Returns the lines that Spark has written for a micro-batch that it has planned; None if they are unknown, as in
    Spark Connect."""
    # Here, because an ingest without new records must not load PySpark.
    from odradek.spark.driver.micro_batch_groups import planned_ends
    from odradek.spark.driver.query_sources import execution_of
    from odradek.spark.session_activation import is_connect

    query = None if is_connect(spark) else spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    execution = None if query is None else execution_of(spark, query)
    ends = None if execution is None else planned_ends(execution, batch)
    return None if ends is None else ["-" if end is None else end for end in ends]
