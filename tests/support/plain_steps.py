"""A process that runs pipelines without Spark (``tests/support/plain_engine.py``); ``forks.run_steps`` starts it.

The argument is a JSON list of steps: the words of a command of ``odradek``, or ``["send", bootstrap, topic, count,
partition]``, or ``["delete", bootstrap, topic, offset]`` for DeleteRecords, or ``["replace", folder, by]`` for a copy,
``["killed", …]`` for an adoption that is killed before it commits the group, or ``["restore", table, versions]`` for a
RESTORE of a Delta table. ``["refused", …]`` is a command that has to say that the table is to be adopted. ``["grown",
bootstrap, topic, …]`` is a refused command during which the topic gets partition 1 with 7 records, after the run has
looked at it. Each other command has to end with 0."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from unittest.mock import patch

from odradek import Admin, Producer, TopicPartition
from odradek.cli.main import run
from support import plain_engine


def send(bootstrap: str, topic: str, count: str, partition: str = "0") -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(int(count)):
            producer.send(topic, b"{}", partition=int(partition))


def delete(bootstrap: str, topic: str, offset: str) -> None:
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): int(offset)})


def replace(folder: str, by: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(by, folder)


class Killed(BaseException):
    """In place of a kill."""


def killed(*command: str) -> None:
    from odradek.pipelines.ingestion import adoption

    with contextlib.suppress(Killed), patch.object(adoption, "_set_group", side_effect=Killed):
        run(list(command))


def restore(table: str, by: str) -> None:
    import deltalake

    log = deltalake.DeltaTable(table)
    log.restore(log.version() + int(by))


def refused(*command: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = run(list(command))
    if code == 0 or "pipeline adopt" not in said.getvalue() or len(said.getvalue().splitlines()) != 1:
        raise SystemExit(f"{command} ends with {code}: {said.getvalue()}")


def grown(bootstrap: str, topic: str, *command: str) -> None:
    from odradek.pipelines.tables.table import Table

    look = Table.start_of_query

    def look_and_grow(self: Table, *given: object) -> object:
        found = look(self, *given)
        run(["topics", "alter", "-b", bootstrap, topic, "--partitions", "2"])
        send(bootstrap, topic, "7", "1")
        return found

    with patch.object(Table, "start_of_query", look_and_grow):
        refused(*command)


STEPS = {one.__name__: one for one in (refused, send, delete, replace, killed, restore, grown)}

if __name__ == "__main__":
    plain_engine.use()
    for step in json.loads(sys.argv[1]):
        if step[0] in STEPS:
            STEPS[step[0]](*step[1:])
        elif code := run(step):
            raise SystemExit(f"{step}: {code}")
