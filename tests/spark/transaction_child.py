"""A separate process: queries with ``transactional_writer`` in which Spark repeats a task, and then a stage.

In the first query the first writing task fails once, after it has sent its rows. In the second one it removes the files
of Spark's shuffle instead: a later task cannot fetch its rows, so Spark repeats the stage.

Arguments: BOOTSTRAP TOPIC TARGET DIRECTORY. The output topics are TARGET-task and TARGET-stage.
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


def fail(directory: Path) -> None:
    raise RuntimeError("a task that fails once")


def remove_shuffle_files(directory: Path) -> None:
    removed = [path.unlink() for path in (directory / "spark").rglob("shuffle_*")]
    assert removed, "Spark has no files of a shuffle"


def main(bootstrap: str, topic: str, target: str, directory: str) -> None:
    place, write = Path(directory), home.write_in_transaction
    # One thread and three tasks: the other tasks fetch their rows after the first one has ended.
    config = {"spark.local.dir": str(place / "spark"), "spark.default.parallelism": "3"}
    spark = session("odradek child", "local[1,3]", config=config)
    register(spark)
    for mode, disturb in (("task", fail), ("stage", remove_shuffle_files)):

        def disturbed(
            options: Any, shared: Any, batches: Iterator[Any], mark: Path = place / mode, disturb: Any = disturb
        ) -> Iterator[Any]:
            rows = list(write(options, shared, batches))
            context = TaskContext.get()
            if context is not None and context.partitionId() == 0 and not mark.exists():
                mark.touch()
                disturb(mark.parent)
            yield from rows

        home.write_in_transaction = disturbed
        reader = spark.readStream.format("odradek").option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load().select("key", "value")
        query = frame.writeStream.foreachBatch(transactional_writer(bootstrap, f"{target}-{mode}"))
        query = query.option("checkpointLocation", f"{directory}/checkpoint-{mode}").trigger(availableNow=True)
        assert query.start().awaitTermination(400)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
