"""A process with a Spark session, or with ``plain_engine``. It runs commands of ``odradek`` line by line, as a terminal
does.

A line is a JSON object: ``command``, the words after ``odradek``; ``locks``, whether another run of the table may stop
the command (without them, every other run looks dead, as after 90 seconds of silence on another machine); ``halt``,
where the process sends itself a signal: ``operation`` of the commit machine, ``when`` (before or after it), ``nth`` and
``signal`` (STOP or KILL). The reply is a JSON object: ``code``, ``out`` and ``err``. A halt is said by ``halted`` and
its ``signal``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from odradek.cli import main as program
from odradek.pipelines.delta import table as delta
from odradek.pipelines.parquet import table as lake
from odradek.pipelines.tables import runs
from odradek.pipelines.tables import table as tables
from odradek.spark.session import session

PUBLISH = ("CreateEntry", "CommitVersion")
TERMINATED = (129, 143)
halt: dict[str, Any] = {}
replies = os.fdopen(os.dup(1), "w", buffering=1)
"""The commands print to ``sys.stdout``, which is caught."""


def reply(content: dict[str, Any]) -> None:
    print(json.dumps(content), file=replies, flush=True)


def halt_at(operation: Any, when: str) -> None:
    name = type(operation).__name__
    if (halt.get("operation"), halt.get("when")) != ("publish" if name in PUBLISH else name, when):
        return
    halt["nth"] -= 1
    if halt["nth"] > 0:
        return
    chosen = halt["signal"]
    halt.clear()
    reply({"halted": name, "signal": chosen})
    os.kill(os.getpid(), signal.Signals[f"SIG{chosen}"])


def halt_at_operations(kind: Any) -> None:
    real = kind._perform

    def perform(self: Any, operation: Any) -> Any:
        halt_at(operation, "before")
        result = real(self, operation)
        halt_at(operation, "after")
        return result

    kind._perform = perform


@contextlib.contextmanager
def opened_locks(is_open: bool) -> Any:
    lock, is_alive = tables._lock, runs._is_alive
    if is_open:
        tables._lock = lambda location, name: contextlib.ExitStack()
        runs._is_alive = lambda record: False
    try:
        yield
    finally:
        tables._lock, runs._is_alive = lock, is_alive


def run_line(given: dict[str, Any]) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    halt.clear()
    halt.update(given.get("halt") or {})
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), opened_locks(not given["locks"]):
        try:
            code = program._end_of_command(given["command"]).code
        except BaseException:  # a bug of the program: the oracle reads the traceback
            traceback.print_exc(file=err)
            code = 70
    halt.clear()
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def main() -> None:
    for kind in (lake.ParquetTable, delta.DeltaTable):
        halt_at_operations(kind)
    if sys.argv[1] == "plain":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from support import plain_engine

        plain_engine.use()
    else:
        session("odradek attack", master="local[1]", config=json.loads(sys.argv[1]), quick_start=True)
    reply({"ready": True})
    for line in sys.stdin:
        done = run_line(json.loads(line))
        reply(done)
        if done["code"] in TERMINATED:  # the query's thread may still run, as in a command that a signal has ended
            replies.flush()
            os._exit(done["code"])


if __name__ == "__main__":
    main()
