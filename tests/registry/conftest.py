"""Fixtures of the registry's tests: a registry on a topic of its own of the shared broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers import unique

import odradek


@pytest.fixture
def registries(bootstrap: str) -> Iterator[Callable[..., odradek.SchemaRegistry]]:
    """Starts registries, by default on one topic that no other test uses."""
    topic = unique("schemas")
    made: list[odradek.SchemaRegistry] = []

    def start(**how: Any) -> odradek.SchemaRegistry:
        made.append(odradek.SchemaRegistry(how.pop("broker", bootstrap), **({"topic": topic} | how)).start())
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def registry(registries: Callable[..., odradek.SchemaRegistry]) -> odradek.SchemaRegistry:
    return registries()
