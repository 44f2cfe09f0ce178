"""Brokers that the tests of other programs kill."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from support.three_brokers import Deployment, ThreeBrokers


@pytest.fixture(params=["one broker", "three brokers"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """A broker of this test, or three of them. The test may kill them."""
    if request.param == "one broker":
        own_broker: Callable[[], Deployment] = request.getfixturevalue("own_broker")
        yield own_broker()
        return
    if os.environ.get("ODRADEK_TEST_ORACLE") or os.environ.get("ODRADEK_TEST_BOOTSTRAP"):
        pytest.skip("three brokers are ours")
    with ThreeBrokers() as made:
        yield made
