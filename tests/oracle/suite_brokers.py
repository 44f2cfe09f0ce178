"""Brokers with the settings of a suite of scenarios."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import odradek

GIVEN = "ODRADEK_TEST_BOOTSTRAP"


@contextmanager
def brokers_of(suites: Mapping[str, Any]) -> Iterator[Callable[[str], odradek.Broker]]:
    """Yields a function: name of a suite → the suite's broker, which starts at the first call."""
    if os.environ.get(GIVEN):
        pytest.skip(f"{GIVEN} is set: this test needs brokers of its own")
    with ExitStack() as running:
        made: dict[str, odradek.Broker] = {}

        def broker_for(suite: str) -> odradek.Broker:
            if suite not in made:
                made[suite] = running.enter_context(odradek.Broker(config=suites[suite].CONFIG))
            return made[suite]

        yield broker_for
