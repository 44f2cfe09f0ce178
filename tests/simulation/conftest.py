"""What tests of simulations share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """The log lines of thousands of starts and elections are of no use."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
