"""A separate process: a query with ``transactional_writer`` whose first task fails once, after it has sent its rows.

Arguments: BOOTSTRAP TOPIC TARGET DIRECTORY.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from odradek.spark import register, transactional_writer
from odradek.spark import transaction_attempts as home
from odradek.spark.session import session


def main(bootstrap: str, topic: str, target: str, directory: str) -> None:
    mark, write = Path(directory) / "failed", home.write_in_transaction

    def failing(options: Any, shared: Any, batches: Iterator[Any]) -> Iterator[Any]:
        rows = list(write(options, shared, batches))
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and not mark.exists():
            mark.touch()
            raise RuntimeError("a task that fails once")
        yield from rows

    home.write_in_transaction = failing
    spark = session("odradek child", "local[2,3]")
    register(spark)
    reader = spark.readStream.format("odradek").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load().select("key", "value")
    query = frame.writeStream.foreachBatch(transactional_writer(bootstrap, target))
    query = query.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    assert query.start().awaitTermination(400)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
