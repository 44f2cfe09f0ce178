"""A separate process whose tasks are disturbed after their files are written and closed. The class of the writer is
pickled by value, because it is defined in a main program. Arguments: master, broker, topic, table, kind of table, the
disturbance."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark import TaskContext

from odradek.pipelines.files import batch_rows
from odradek.pipelines.files.table_writer import TableWriter
from odradek.pipelines.files.task_reports import TaskReport
from odradek.pipelines.ingestion import job as ingest_job
from odradek.spark.offsets.offset_ranges import Piece
from odradek.spark.session import session

master, bootstrap, topic, output, table_format, how = sys.argv[1:]
notes = Path(output).parent / "notes"
notes.mkdir(parents=True)


class Disturbed(TableWriter):
    """A writer that disturbs tasks after they have written all their files.

    ``how``: the first attempt of each task fails, or the process of this attempt is killed, or the first attempt of the
    first task takes very long. Spark then runs the task again, so both attempts have written all their rows.
    """

    def write(self, pieces: Sequence[Piece]) -> TaskReport:
        report = super().write(pieces)
        context = TaskContext.get()
        note = notes / f"{context.partitionId()}-{context.attemptNumber()}"
        note.write_text(json.dumps([file.name for file in report.files]))
        if context.attemptNumber() == 0:
            if how == "fails":
                raise RuntimeError("disturbed")
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "slow" and context.partitionId() == 0:
                time.sleep(60)
        return report


batch_rows.TableWriter = Disturbed
config = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
speculate = {
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.interval": "200ms",
}
speculate["spark.speculation.quantile"] = "0.5"
spark = session("attempts", master, config | speculate if how == "slow" else config)
reports: list[TaskReport] = []
wrap = batch_rows.check_ranges
batch_rows.check_ranges = lambda planned, found: (reports.extend(found), wrap(planned, found))
done = ingest_job.ingest(
    bootstrap,
    topics=topic,
    group=f"{topic}-group",
    output=output,
    table_format=table_format,
    partition_by=["key"],
    options={"minPartitions": "4"},
    spark=spark,
)
said = {
    "rows": done.rows,
    "attempts": [report.attempt for report in reports],
    "reported": sorted(file.name for report in reports for file in report.files),
    "written": {note.name: json.loads(note.read_text()) for note in notes.iterdir()},
    "beside": [str(path) for path in Path(output).parent.iterdir() if path.name.startswith(".")],
    "records": [json.loads(path.read_text())["process"] for path in Path(output).glob("_odradek/runs/*.json")],
}
print(json.dumps(said), flush=True)
