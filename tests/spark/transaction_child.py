"""A separate process: queries with ``transactional_writer`` in which Spark repeats the work of tasks.

In each query the first writing task is disturbed once, after it has sent its rows:

* ``task``: it fails.
* ``stage``: it removes the files of Spark's shuffle. A later task cannot fetch its rows, so Spark repeats the stage.
* ``executor``: it kills its executor, a Java process, by signal 9. The task's Python process loses its parent.
* ``speculation``: it is slow, and Spark makes a copy of it on the other executor.

Arguments: BOOTSTRAP TOPIC TARGET DIRECTORY MASTER MODE... The output topics are TARGET-MODE.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from odradek.spark import register, transactional_writer
from odradek.spark.driver import transaction_attempts as home
from odradek.spark.session import session


def fail(directory: Path) -> None:
    raise RuntimeError("a task that fails once")


def remove_shuffle_files(directory: Path) -> None:
    removed = [path.unlink() for path in (directory / "spark").rglob("shuffle_*")]
    assert removed, "Spark has no files of a shuffle"


def kill_executor(directory: Path) -> None:
    os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the parent process starts Python workers for the executor
    time.sleep(5)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def be_slow(directory: Path) -> None:
    time.sleep(60)


DISTURBANCES = {
    "task": fail,
    "stage": remove_shuffle_files,
    "executor": kill_executor,
    "speculation": be_slow,
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "8s",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
}


def main(bootstrap: str, topic: str, target: str, directory: str, master: str, *modes: str) -> None:
    place, write = Path(directory), home.write_in_transaction
    # Local mode has one thread for three tasks: the other tasks fetch their rows after the first task has ended.
    config = {"spark.local.dir": str(place / "spark"), "spark.default.parallelism": "3"}
    config |= {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    config |= {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    spark = session("odradek child", master, config=config | (SPECULATION if "speculation" in modes else {}))
    register(spark)
    for mode in modes:
        disturb = DISTURBANCES[mode]

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
