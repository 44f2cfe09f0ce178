"""Fixtures of the monitor's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hook_receiver import HookReceiver


@pytest.fixture
def receiver() -> Iterator[HookReceiver]:
    made = HookReceiver()
    yield made
    made.close()
