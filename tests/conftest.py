"""Fixtures of all tests: a broker, unused names, Apache Kafka's jars, hypothesis profiles."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from support.brokers import RunningBroker, make_broker, unique
from support.collection import COLLECTED
from support.examples import LONG, examples
from support.forks import fork_brokers, odradek_command, plain_brokers
from support.jvm import KafkaTools, spark_java_options
from support.quorums import install as install_quorum
from support.signal_handlers import SignalHandlers
from support.spark_session import spark, spark_python  # noqa: F401  fixtures, one for all folders that use them

if TYPE_CHECKING:
    from odradek.testing.zookeeper import ZooKeeper

gc.disable()  # until pytest has collected the tests: nearly all objects made until then are kept

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # tests share bench/apache.py
    sys.path.insert(0, str(ROOT))

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
# Every run has the same examples, so that a failure is due to the change of a commit. HYPOTHESIS_PROFILE=explore tries
# other examples. `make test-long` sets the profile "long", with more examples.
_REPEATABLE: dict[str, Any] = {
    "deadline": None, "derandomize": True, "database": None, "suppress_health_check": _SLOW
}  # fmt: skip
settings.register_profile("repeatable", max_examples=examples(30), **_REPEATABLE)
settings.register_profile(LONG, max_examples=examples(30), **_REPEATABLE)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_java_options())
fork_brokers()
install_quorum()

# A shell starts background commands with SIGINT ignored, and programs started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GIVEN = "ODRADEK_TEST_BOOTSTRAP"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SignalHandlers())


@pytest.fixture(scope="session", autouse=True)
def _user_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Undo files of tests are not for the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("user-data")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _admin_clients() -> Iterator[None]:
    """Ends the admin clients of the module: they would connect to the ports of its brokers, also of later ones."""
    yield
    if (publish := sys.modules.get("support.publish")) is not None:
        publish.admin.cache_clear()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Leaves out asyncio's lines: a garbage collection logs there what an earlier test's client did not close."""

    def is_of_this_test(record: logging.LogRecord) -> bool:
        return record.name != "asyncio"

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from support.distribution import BothEnds

    return BothEnds(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = list(items)  # called before pytest's own hook, which deselects tests
    if "PYTEST_XDIST_WORKER" in os.environ:
        from support.distribution import arrange

        arrange(items)


def pytest_collection_finish() -> None:
    """The collected tests live until the end. Each full garbage collection would visit all of their objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The broker that most tests share. No test may kill it; ``own_broker`` is for that."""
    if os.environ.get(GIVEN):
        pytest.skip(f"{GIVEN} is set: this test needs its own broker")
    # Records of tests are often dated years ago, and this broker runs long enough to delete them, so retention is off.
    never = {"log_retention_check_interval_ms": "86400000"}
    if os.environ.get("ODRADEK_TEST_ORACLE"):
        never["log_initial_task_delay_ms"] = "86400000"  # Apache Kafka checks for the first time after 30 s
    running = make_broker(tmp_path_factory.mktemp("broker"), **never)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of the shared broker, or the value of ODRADEK_TEST_BOOTSTRAP."""
    given = os.environ.get(GIVEN)
    return given or str(request.getfixturevalue("broker").bootstrap)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Starts brokers for this test only: ``own_broker(offsets_retention_minutes="1")``. The test may kill them."""
    if os.environ.get(GIVEN) and not os.environ.get("ODRADEK_TEST_ORACLE"):
        pytest.skip(f"{GIVEN} is set: the tests must not kill or restart that broker")
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
def plain_broker() -> Iterator[None]:
    """Makes each broker of the test a new Python process, as for users. In other tests, brokers are forks."""
    with plain_brokers():
        yield


@pytest.fixture
def forked_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons that this process starts as ``sys.executable -m …`` are forks of a process that has loaded our modules.

    A new Python takes half a second or more for its imports."""
    monkeypatch.setattr(sys, "executable", odradek_command()[0])


@pytest.fixture
def topic() -> str:
    """An unused topic name."""
    return unique("topic")


@pytest.fixture
def group() -> str:
    """An unused group id."""
    return unique("group")


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """The one node of ZooKeeper that tests share; a test that ends it starts it again. Skips without Java."""
    from odradek.testing.zookeeper import ZooKeeper, ZooKeeperFailed

    try:
        made = ZooKeeper()
    except ZooKeeperFailed as error:
        pytest.skip(f"no ZooKeeper for this test: {error}")
    with made:
        yield made


@pytest.fixture(scope="session")
def kafka_cp() -> str:
    """The class path of Apache Kafka 4.3's tools. Skips with a reason if they are not available."""
    from bench.apache import Unavailable, class_path

    try:
        return class_path()
    except Unavailable as error:
        pytest.skip(f"Apache Kafka's tools are not available: {error}")


@pytest.fixture(scope="session")
def kafka_tools(kafka_cp: str) -> Iterator[KafkaTools]:
    """Runs Apache Kafka 4.3's tools."""
    tools = KafkaTools(kafka_cp)
    yield tools
    tools.close()
