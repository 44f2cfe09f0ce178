"""An Iceberg table in Apache Iceberg's own REST catalogue: drivers are killed and stopped, and so is the catalogue.

The rounds and their checker are those of the SQL catalogue (``test_iceberg_kill``). In some rounds the catalogue is
killed, too, while drivers commit, and starts again.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from random import Random

import pytest
from iceberg_tables import add, append_foreign, offsets_in, table_in, use_rest
from pyiceberg.exceptions import CommitFailedException, RESTError
from support.iceberg_server import IcebergServer, iceberg_server
from test_iceberg_kill import Drivers, check_said, check_whole, other_writer, round_of_kills
from test_iceberg_table import set_back

from odradek.core.errors import StorageError
from odradek.pipelines.commit.state import RunFenced, TableRefused


def test_commits_runs_and_rollbacks(tmp_path: Path) -> None:
    """What the SQL catalogue shows, too: one snapshot a micro-batch, beside other writers, runs and a rollback."""
    with iceberg_server(tmp_path) as server:
        use_rest(tmp_path, server.uri)
        first = table_in(tmp_path)
        add(first, 0)
        add(first, 1, during=lambda: append_foreign(tmp_path))
        other = table_in(tmp_path, "b")
        assert add(other, 1) == 10
        add(other, 2)
        with pytest.raises(RunFenced):
            add(first, 3)
        assert offsets_in(tmp_path) == list(range(30))
        server.kill()
        with pytest.raises(StorageError, match="cannot be used"):
            table_in(tmp_path, "c")
        server.start()
        add(table_in(tmp_path, "d"), 3)
        set_back(tmp_path, 2)
        with pytest.raises(TableRefused, match=r"back to an earlier snapshot .*took rows back.*adopt"):
            add(table_in(tmp_path, "e"), 4)


def rounds(seed: int, root: Path, server: IcebergServer, count: int) -> None:
    drivers, chance = Drivers(root), Random(seed)
    for number in range(1, count + 1):
        breaking = threading.Timer(chance.random() * 3, restart, (server,))
        if is_broken := chance.random() < 0.5:
            breaking.start()
        round_of_kills(drivers, chance, root, number * 12, other_writer_of_a_killed_catalogue)
        if is_broken:
            breaking.join()
            drivers.end(drivers.start(number * 12))
        check_whole(root, number * 12)
    check_said(drivers, "StorageError: the Iceberg table", "StorageError: the commit", "StorageError: the catalogue")


def other_writer_of_a_killed_catalogue(root: Path, chance: Random) -> None:
    """The catalogue may be away: then the writer tries again. It may append its rows twice."""
    for _ in range(100):
        try:
            return other_writer(root, chance)
        except (OSError, RESTError, CommitFailedException):
            time.sleep(0.2)  # a killed catalogue needs some seconds for its start
    raise AssertionError("the catalogue does not come back")


def restart(server: IcebergServer) -> None:
    server.kill()
    server.start()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("ODRADEK_ICEBERG_SEEDS", "4"))))
def test_many_kills_and_stops(seed: int, tmp_path: Path) -> None:
    with iceberg_server(tmp_path) as server:
        use_rest(tmp_path, server.uri)
        rounds(200 + seed, tmp_path, server, 5)
