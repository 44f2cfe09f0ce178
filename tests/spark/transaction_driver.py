"""A driver that a test kills: a query with ``transactional_writer``, and at most one fault in a micro-batch.

Arguments: BOOTSTRAP TOPIC TARGET GROUP DIRECTORY. ``DIRECTORY/faults.json`` has the fault of each micro-batch by its
number. A fault happens once: the file ``DIRECTORY/done-N`` is written before it. A fault of the driver kills Java and
this process by signal 9. A fault of workers kills the Python process of one task, or all Python workers. For a fault
of the broker, the driver asks the test to kill the broker, and waits until the broker serves again. At ``wait`` the
driver waits until the test creates the file ``DIRECTORY/go-on``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from odradek.client.producer import Producer
from odradek.client.producer.transactional_engine import TransactionalEngine
from odradek.spark import register, transactional_writer
from odradek.spark.driver import transaction_attempts
from odradek.spark.session import session
from odradek.wire.api_keys import END_TXN

WAIT_S = 240


class Faults:
    """The plan, as every process of the driver reads it."""

    def __init__(self, directory: str) -> None:
        self.place = Path(directory)
        self.plan: dict[str, str] = json.loads((self.place / "faults.json").read_text())

    def is_due(self, fault: str, batch: int) -> bool:
        """Returns whether a fault has to happen now. If so, marks it as done."""
        mark = self.place / f"done-{batch}"
        if self.plan.get(str(batch)) != fault or mark.exists():
            return False
        mark.touch()
        return True

    def replace_broker(self, batch: int) -> None:
        """Asks the test to kill the broker and start it again, and waits until the test has done so."""
        (self.place / f"kill-{batch}").touch()
        self.wait(f"back-{batch}")

    def wait(self, name: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not (self.place / name).exists():
            assert time.monotonic() < deadline, f"no {name} within {WAIT_S} s"
            time.sleep(0.02)


class Driver:
    """The driver's process with its hooks. ``batch``: the micro-batch that runs."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.batch = -1
        self.java = 0

    def reach(self, moment: str) -> None:
        if self.faults.is_due(f"driver {moment}", self.batch):
            self.die()
        if self.faults.is_due(f"broker {moment}", self.batch):
            self.faults.replace_broker(self.batch)
        if self.faults.is_due(f"wait {moment}", self.batch):
            (self.faults.place / "waiting").touch()
            self.faults.wait("go-on")

    def die(self) -> None:
        os.kill(self.java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(self) -> None:
        share, send_offsets = Producer.share_transaction, Producer.send_offsets_to_transaction
        commit, ask = Producer.commit_transaction, TransactionalEngine._ask

        def at_share(producer: Producer, partitions: Any) -> Any:
            self.reach("after InitProducerId")
            return share(producer, partitions)

        def at_offsets(producer: Producer, offsets: Any, group: Any) -> None:
            self.reach("after the stage")
            send_offsets(producer, offsets, group)

        def at_commit(producer: Producer) -> None:
            self.reach("before EndTxn")
            commit(producer)
            self.reach("after EndTxn")

        async def at_request(engine: TransactionalEngine, request: Any) -> Any:
            if request.api_key == END_TXN and self.faults.is_due("driver with EndTxn unanswered", self.batch):
                node = await engine.cluster.coordinator(engine._id, 1)
                connection = await engine.cluster.connection(node.node_id)
                connection.call = dying(connection.call, self)
            return await ask(engine, request)

        Producer.share_transaction = at_share
        Producer.send_offsets_to_transaction = at_offsets
        Producer.commit_transaction = at_commit
        TransactionalEngine._ask = at_request


def dying(call: Any, driver: Driver) -> Any:
    """Returns a call that sends its request and ends the driver before the reply arrives."""
    import asyncio

    async def send(*args: Any, **keywords: Any) -> Any:
        sent = asyncio.ensure_future(call(*args, **keywords))
        await asyncio.sleep(0)  # the request is in the socket's buffer
        await asyncio.sleep(0)
        driver.die()
        return await sent

    return send


def faulty(write: Any, faults: Faults, batch: list[int]) -> Any:
    """``write_in_transaction`` of a worker, with faults in the task of partition 0."""

    def reach(moment: str) -> None:
        context = TaskContext.get()
        if context is None or context.partitionId() != 0:
            return
        if faults.is_due(f"worker {moment}", batch[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        if faults.is_due(f"all workers {moment}", batch[0]):
            os.killpg(os.getpgrp(), signal.SIGKILL)  # the process that starts workers has a process group of its own
        if faults.is_due(f"broker in a task {moment}", batch[0]):
            faults.replace_broker(batch[0])

    def disturbed(options: Any, shared: Any, batches: Iterator[Any]) -> Iterator[Any]:
        reach("before its rows")
        rows = list(write(options, shared, while_sending(batches)))
        reach("after its rows")
        yield from rows

    def while_sending(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        reach("before the flush")

    return disturbed


def main(bootstrap: str, topic: str, target: str, group: str, directory: str) -> None:
    faults = Faults(directory)
    driver = Driver(faults)
    spark = session("odradek driver", "local[2,3]", config={"spark.ui.enabled": "false"})
    register(spark)
    jvm = spark._jvm
    assert jvm is not None
    driver.java = int(jvm.java.lang.ProcessHandle.current().pid())
    driver.hook()
    writer, write = transactional_writer(bootstrap, target), transaction_attempts.write_in_transaction

    def each(frame: Any, batch: int) -> None:
        driver.batch = batch
        transaction_attempts.write_in_transaction = faulty(write, faults, [batch])
        writer(frame, batch)
        driver.reach("before Spark's mark")

    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "kafka.group.id": group,
        "commitOffsets": "transaction",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "20",
    }
    frame = spark.readStream.format("odradek").options(**options).load().select("key", "value")
    query = frame.writeStream.foreachBatch(each).option("checkpointLocation", f"{directory}/checkpoint")
    assert query.trigger(availableNow=True).start().awaitTermination(1200)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
