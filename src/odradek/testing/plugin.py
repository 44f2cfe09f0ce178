"""pytest plugin: a broker per test session, a topic per test.

Every pytest run loads this module if odradek is installed. So at import it needs nothing but pytest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from odradek.testing.broker import Broker

_RUNNING = pytest.StashKey["Broker"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "odradek_config", "settings of the broker behind odradek_broker, one name=value per line", type="linelist"
    )


@pytest.fixture(scope="session")
def odradek_broker_config(pytestconfig: pytest.Config) -> dict[str, str]:
    """The settings of ``odradek_broker`` by Kafka's names, from the ini option odradek_config. A project may override
    this fixture."""
    lines = [line.partition("=") for line in pytestconfig.getini("odradek_config")]
    wrong = [name for name, equals, _ in lines if not equals]
    if wrong:
        raise pytest.UsageError(f"odradek_config takes name=value, one per line, not {wrong[0]!r}")
    return {name.strip(): value.strip() for name, _, value in lines}


@pytest.fixture(scope="session")
def odradek_broker(odradek_broker_config: dict[str, str], pytestconfig: pytest.Config) -> Iterator[Broker]:
    """The broker of all tests. After each test, the plugin clears the broker's faults, and restarts an ended broker."""
    from odradek.testing.broker import Broker

    with Broker(config=odradek_broker_config) as broker:
        pytestconfig.stash[_RUNNING] = broker
        yield broker
        del pytestconfig.stash[_RUNNING]


@pytest.fixture
def odradek_topic(odradek_broker: Broker, request: pytest.FixtureRequest) -> str:
    """A topic for this test only, with the broker's ``num.partitions``; its name starts with the test's name."""
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:100].strip("-.")
    name = f"{plain}-{uuid.uuid4().hex[:8]}"
    odradek_broker.create_topic(name)
    return name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    broker = item.config.stash.get(_RUNNING, None)
    last_words = None
    if broker is not None and broker.running:
        broker.faults.clear()
    elif broker is not None:
        last_words = broker.log_tail() if broker.failed else None
        broker.start()
    yield
    if last_words is not None:
        pytest.fail(f"the broker ended by itself; the end of its log:\n{last_words}", pytrace=False)
