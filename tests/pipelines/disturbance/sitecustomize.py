"""Disturbs one attempt of one task in Spark's Python workers: ``ODRADEK_DISTURB=MODULE,HOW,MARK``.

Python imports this file at its start if the folder is on PYTHONPATH. ``MODULE`` is ``odradek.spark.piece_reader`` (the
attempt is disturbed after it has read its rows) or ``odradek.spark.writes.write_task`` (after the brokers have
acknowledged a part of its rows). ``HOW``: ``dies`` kills the worker's process, ``slow`` waits. ``MARK``: a file for the
fact that it has happened.
"""

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

chosen = os.environ.get("ODRADEK_DISTURB", ",,").split(",")
BATCHES = 3


def disturb() -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or (context.partitionId(), context.attemptNumber()) != (0, 0) or Path(chosen[2]).exists():
        return
    Path(chosen[2]).touch()
    if chosen[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # Spark starts a copy of such an attempt within seconds, and ends this one


def patch_reader(module) -> None:
    real = module._read_piece

    def read(*given):
        yield from real(*given)
        disturb()

    module._read_piece = read


def patch_sink(module) -> None:
    real = module.write_task

    def write(options, batches):
        def some():
            for number, batch in enumerate(batches):
                if number == BATCHES:
                    module._producer(options).flush()
                    disturb()
                yield batch

        return real(options, some())

    module.write_task = write


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != chosen[0]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def load(module):
            run(module)
            (patch_reader if name.endswith("piece_reader") else patch_sink)(module)

        spec.loader.exec_module = load
        return spec


if chosen[0]:
    sys.meta_path.insert(0, Finder())
