"""Fixtures of all tests: a broker, fresh names, Apache Kafka's jars, hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.brokers import RunningBroker, make_broker, unique
from support.collection import COLLECTED
from support.jvm import spark_java_options

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # tests share bench/apache.py
    sys.path.insert(0, str(ROOT))

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
# The same examples in every run, so that a commit is judged by what it changed;
# HYPOTHESIS_PROFILE=explore looks further.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_java_options())

# A shell starts what runs in the background with SIGINT ignored, and programs started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GIVEN = "ODRADEK_TEST_BOOTSTRAP"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from support.distribution import BothEnds

    return BothEnds(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = list(items)  # called before pytest's own, which deselects
    if "PYTEST_XDIST_WORKER" in os.environ:
        from support.distribution import arrange

        arrange(items)


def pytest_collection_finish() -> None:
    """The collected tests stay to the end. Each full collection of garbage would look at all of their objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The broker most tests share. Nobody kills it; ``own_broker`` is for that."""
    if os.environ.get(GIVEN):
        pytest.skip(f"{GIVEN} is set: this test needs a broker of its own")
    # What tests write is often dated years ago, and this broker lives long enough to look at that: it does not.
    never = {"log_retention_check_interval_ms": "86400000"}
    if os.environ.get("ODRADEK_TEST_ORACLE"):
        never["log_initial_task_delay_ms"] = "86400000"  # Apache Kafka looks for the first time after 30 s
    running = make_broker(tmp_path_factory.mktemp("broker"), **never)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of the shared broker, or what ODRADEK_TEST_BOOTSTRAP names."""
    given = os.environ.get(GIVEN)
    return given or str(request.getfixturevalue("broker").bootstrap)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Starts brokers of this test alone (``own_broker(offsets_retention_minutes="1")``), to be killed at will."""
    if os.environ.get(GIVEN) and not os.environ.get("ODRADEK_TEST_ORACLE"):
        pytest.skip(f"{GIVEN} is set: that broker is not ours to kill or restart")
    started: list[RunningBroker] = []

    def start(**config: str) -> RunningBroker:
        running = make_broker(tmp_path / f"broker-{len(started)}", **config)
        started.append(running)
        running.start()
        return running

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def topic() -> str:
    """A topic name nobody has used."""
    return unique("topic")


@pytest.fixture
def group() -> str:
    """A group id nobody has used."""
    return unique("group")


@pytest.fixture(scope="session")
def kafka_cp() -> str:
    """Class path of Apache Kafka 4.3's tools; skips, saying why, where it cannot be had."""
    from bench.apache import Unavailable, class_path

    try:
        return class_path()
    except Unavailable as error:
        pytest.skip(f"Apache Kafka's tools are not to be had: {error}")
