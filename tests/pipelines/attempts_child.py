"""A process of its own whose tasks fail after they have written, or are run twice at once: its class of decoders is
pickled by value, as all of a main program is. Arguments: master, broker, topic, table, kind of table, what happens.
"""

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from odradek.pipelines import batch_rows, ingesting
from odradek.pipelines.decoders import Decoder, decoder_for
from odradek.pipelines.values import Values
from odradek.spark.session import session


class Disturbed(Decoder):
    """The first attempt of each task fails at the end of what it reads, or takes very long there."""

    def __init__(self, inner: Decoder, how: str) -> None:
        self.inner, self.how, self.schema = inner, how, inner.schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        context = TaskContext.get()
        if batch.column("offset")[-1].as_py() == 249 and context.attemptNumber() == 0:
            if self.how == "fails":
                raise RuntimeError("disturbed")
            if context.partitionId() == 0:
                time.sleep(60)
        return self.inner.decode(batch)


master, bootstrap, topic, output, table_format, how = sys.argv[1:]
ingesting.decoder_for = lambda values, zone: Disturbed(decoder_for(Values()), how)
config = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
speculate = {
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.interval": "200ms",
}
speculate["spark.speculation.quantile"] = "0.5"
spark = session("attempts", master, config | speculate if how == "slow" else config)
reports: list[object] = []
wrap = batch_rows.check_ranges
batch_rows.check_ranges = lambda planned, found: (reports.extend(found), wrap(planned, found))
done = ingesting.ingest(
    bootstrap,
    topics=topic,
    group=f"{topic}-group",
    output=output,
    table_format=table_format,
    partition_by=["key"],
    options={"minPartitions": "4"},
    spark=spark,
)
staged = [str(path) for path in Path(output).parent.iterdir() if path.name.startswith(".")]
attempts = [report.attempt for report in reports]
print(json.dumps({"rows": done.rows, "attempts": attempts, "beside": staged}), flush=True)
