"""The data directory: its permissions for other users of the machine."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from support.brokers import RunningBroker
from test_connection_shares import run, serving


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_a_new_data_directory(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()
    assert mode(running.directory / "data") == 0o700


def test_the_mode_of_an_existing_directory_is_not_changed(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with serving(directory):
            pass

    for given in (0o750, 0o755, 0o700):
        directory = tmp_path / f"{given:o}"
        directory.mkdir(given)
        directory.chmod(given)
        run(scenario(directory))
        assert mode(directory) == given
