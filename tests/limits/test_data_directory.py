"""The data directory: what others on the machine see of it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from support.brokers import RunningBroker
from test_turns import run, serving


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_data_directory_is_for_its_owner_alone(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()
    assert mode(running.directory / "data") == 0o700


def test_the_mode_of_a_directory_that_is_there_stays(tmp_path: Path) -> None:
    async def story(directory: Path) -> None:
        async with serving(directory):
            pass

    for given in (0o750, 0o755, 0o700):
        directory = tmp_path / f"{given:o}"
        directory.mkdir(given)
        directory.chmod(given)
        run(story(directory))
        assert mode(directory) == given
