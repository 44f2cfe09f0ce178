"""pytest plugin: a broker per test session, a topic per test, clients for both, clusters, and assertions about offsets.

Every pytest run loads this module if odradek is installed. So at import it needs nothing but pytest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from odradek.client.consumer import Consumer
    from odradek.client.producer import Producer
    from odradek.testing.broker import Broker
    from odradek.testing.cluster import Cluster
    from odradek.testing.offset_assertions import OffsetAssertions
    from odradek.testing.schema_registry import SchemaRegistry

_BROKER = pytest.StashKey["Broker"]()
_SHARED = pytest.StashKey["Broker"]()
_CLUSTERS = pytest.StashKey[list["Cluster"]]()
_REGISTRY = pytest.StashKey["SchemaRegistry"]()
_LOG_SIZE = pytest.StashKey[int]()
_LOG_SIZES = pytest.StashKey[dict[int, dict[Any, int]]]()
_SHARED_BROKER = "odradek_shared_broker"
_CLUSTER_FIXTURES = frozenset({"odradek_cluster", "odradek_clusters"})
_MARKERS = (
    "odradek_topic(partitions=None, config=None, records=(), name=None): the partitions, settings, first records and "
    "name of the topic of the fixture odradek_topic",
    "odradek_consumer(**settings): settings of the fixture odradek_consumer",
    "odradek_producer(**settings): settings of the fixture odradek_producer",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "odradek_config", "settings of the broker behind odradek_broker, one name=value per line", type="linelist"
    )
    parser.addini(
        "odradek_security",
        "security of the broker behind odradek_broker: SSL, SASL_PLAINTEXT or SASL_SSL, with a throw-away authority",
        default="",
    )
    parser.addini("odradek_cluster_brokers", "the number of brokers of odradek_cluster", default="3")
    parser.addini("odradek_cluster_racks", "the racks of the brokers of odradek_cluster", type="args", default=[])
    parser.addini(
        _SHARED_BROKER,
        "one broker for all worker processes of pytest-xdist, not one for each",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def _ini_settings(config: pytest.Config) -> dict[str, str]:
    lines = [line.partition("=") for line in config.getini("odradek_config")]
    wrong = [name for name, equals, _ in lines if not equals]
    if wrong:
        raise pytest.UsageError(f"odradek_config takes name=value, one per line, not {wrong[0]!r}")
    return {name.strip(): value.strip() for name, _, value in lines}


@pytest.fixture(scope="session")
def odradek_broker_config(pytestconfig: pytest.Config) -> dict[str, str]:
    """The settings of ``odradek_broker`` by Kafka's names, from the ini option odradek_config. A project may override
    this fixture."""
    return _ini_settings(pytestconfig)


@pytest.fixture(scope="session")
def odradek_broker(odradek_broker_config: dict[str, str], pytestconfig: pytest.Config) -> Iterator[Broker]:
    """The broker of all tests. After each test, the plugin clears the broker's faults, and restarts an ended broker.

    The ini option ``odradek_security = SASL_SSL`` gives it TLS and a user; ``odradek_broker.client_settings`` has what
    clients need. With the ini option odradek_shared_broker, the worker processes of pytest-xdist share one broker.
    """
    with _shared(pytestconfig, odradek_broker_config) or _own(
        odradek_broker_config, pytestconfig.getini("odradek_security")
    ) as broker:
        pytestconfig.stash[_BROKER] = broker
        yield broker
        del pytestconfig.stash[_BROKER]


def _own(settings: dict[str, str], security: str) -> Broker:
    from odradek.testing.broker import Broker

    # At INFO the reports of failed tests name refused requests with their reasons.
    return Broker(config=settings, security=security or None, log_level="INFO")


def _shared(config: pytest.Config, settings: dict[str, str]) -> Broker | None:
    """The main process's broker, in a worker process of pytest-xdist. Else None."""
    given = getattr(config, "workerinput", {}).get(_SHARED_BROKER)
    if given is None:
        return None
    if settings != _ini_settings(config):
        raise pytest.UsageError(
            "odradek_shared_broker starts the broker before any fixture: set odradek_config in the ini file and remove "
            "the fixture odradek_broker_config"
        )
    from odradek.testing.shared_broker import SharedBroker

    return SharedBroker(given["host"], given["port"], Path(given["directory"]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Starts the shared broker in the main process of pytest-xdist, before its first worker starts."""
    config = node.config
    if not config.getini(_SHARED_BROKER):
        return
    if _SHARED not in config.stash:
        if config.getini("odradek_security"):
            raise pytest.UsageError("odradek_security and odradek_shared_broker cannot be set together")
        from odradek.core.errors import ConfigError

        try:
            config.stash[_SHARED] = _own(_ini_settings(config), "").start()
        except ConfigError as error:
            raise pytest.UsageError(f"odradek_config: {error}") from None
    broker = config.stash[_SHARED]
    host, _, port = broker.bootstrap_servers.rpartition(":")
    node.workerinput[_SHARED_BROKER] = {"host": host, "port": int(port), "directory": str(broker.data_dir.parent)}


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SHARED in config.stash:
        config.stash[_SHARED].close()
        del config.stash[_SHARED]


@pytest.fixture
def odradek_topics(odradek_broker: Broker, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """A function that creates a topic for this test only and returns its name, which starts with the test's name.

    ``odradek_topics(partitions=None, config=None, records=(), name=None)``: the number of partitions (None: the
    broker's ``num.partitions``), the topic's settings, and its first records (``odradek.testing.seed_records``).
    ``name``: for programs that have fixed names of topics. Such a topic is deleted after the test, with the offsets
    that groups have committed for it. A topic of this name that is left from before is deleted first.
    """
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:100].strip("-.")
    named: list[str] = []

    def create(
        partitions: int | None = None,
        config: dict[str, object] | None = None,
        records: Any = (),
        name: str | None = None,
    ) -> str:
        if name is None:
            name = f"{plain}-{uuid.uuid4().hex[:8]}"
        else:
            if _SHARED_BROKER not in getattr(request.config, "workerinput", {}):  # no other test uses this name now
                odradek_broker.delete_topic(name, missing_ok=True)
            named.append(name)
        odradek_broker.create_topic(name, partitions, config)
        if records is not None and records != ():
            from odradek.testing.seed_records import send_records

            send_records(odradek_broker.bootstrap_servers, name, records)
        return name

    yield create
    for name in named:
        odradek_broker.delete_topic(name, missing_ok=True)


@pytest.fixture
def odradek_topic(odradek_topics: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """A topic for this test only. ``@pytest.mark.odradek_topic(partitions=3, records=[b"one"])`` sets its partitions,
    settings, first records and name."""
    marker = request.node.get_closest_marker("odradek_topic")
    if marker is None:
        return odradek_topics()
    names = ("partitions", "config", "records", "name")
    unknown = [repr(one) for one in marker.args[4:]] + [one for one in marker.kwargs if one not in names]
    if unknown:
        raise TypeError(f"the marker odradek_topic has no {unknown[0]}; it has {', '.join(names)}")
    return odradek_topics(*marker.args, **marker.kwargs)


def _settings(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """The settings in all markers of this name: the test's own override those of its class and its module."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers(name):
        if marker.args:
            raise TypeError(
                f'the marker {name} takes settings by name, as in {name}(client_id="a"), not {marker.args[0]!r}'
            )
        settings = marker.kwargs | settings
    return settings


@pytest.fixture
def odradek_producer(odradek_broker: Broker, request: pytest.FixtureRequest) -> Iterator[Producer]:
    """An ``odradek.Producer``, closed after the test. ``@pytest.mark.odradek_producer(acks="1")`` sets its settings."""
    from odradek.client.producer import Producer

    with Producer(odradek_broker.client_settings, **_settings(request, "odradek_producer")) as producer:
        yield producer


@pytest.fixture
def odradek_consumer(odradek_broker: Broker, odradek_topic: str, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    """An ``odradek.Consumer`` of ``odradek_topic`` from its start, closed after the test. Its records have headers.

    Its group has the topic's name. ``@pytest.mark.odradek_consumer(group_id="billing")`` sets its settings.
    """
    from odradek.batches.columns import COLUMNS
    from odradek.client.consumer import Consumer

    defaults = {"group_id": odradek_topic, "auto_offset_reset": "earliest", "columns": COLUMNS}
    settings = defaults | _settings(request, "odradek_consumer")
    with Consumer(odradek_broker.client_settings, **settings) as consumer:
        consumer.subscribe([odradek_topic])
        yield consumer


@pytest.fixture(scope="session")
def odradek_offsets(odradek_broker: Broker) -> Iterator[OffsetAssertions]:
    """Assertions about the offsets of groups: ``assert_committed``, ``wait_for_lag``, ``committed``, ``lag``."""
    from odradek.testing.offset_assertions import OffsetAssertions

    with OffsetAssertions(odradek_broker.client_settings) as offsets:
        yield offsets


@pytest.fixture(scope="session")
def odradek_schema_registry(odradek_broker: Broker, pytestconfig: pytest.Config) -> Iterator[SchemaRegistry]:
    """A schema registry beside ``odradek_broker``, of all tests; its topic is ``_schemas``.

    ``odradek_schema_registry.url`` is for any client of Confluent's registry. After each test, the plugin removes its
    faults, and starts it again if the test has stopped it."""
    from odradek.testing.schema_registry import SchemaRegistry

    with SchemaRegistry(odradek_broker) as registry:
        pytestconfig.stash[_REGISTRY] = registry
        yield registry
        del pytestconfig.stash[_REGISTRY]


@pytest.fixture(scope="session")
def odradek_cluster(odradek_broker_config: dict[str, str], pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster of all tests: three brokers and a controller, each in a process of its own.

    After each test, the plugin lets paused nodes go on, heals the network between the nodes, removes faults, and starts
    those again that have ended. The ini options odradek_cluster_brokers, odradek_cluster_racks and odradek_config
    describe it."""
    count = pytestconfig.getini("odradek_cluster_brokers")
    if not count.isdigit():
        raise pytest.UsageError(f"odradek_cluster_brokers is the number of brokers, not {count!r}")
    with _cluster(
        pytestconfig, int(count), pytestconfig.getini("odradek_cluster_racks"), odradek_broker_config
    ) as made:
        yield made
        pytestconfig.stash[_CLUSTERS].remove(made)


@pytest.fixture
def odradek_clusters(pytestconfig: pytest.Config) -> Iterator[Callable[..., Cluster]]:
    """A function that starts a cluster for this test only: ``odradek_clusters(brokers=3, racks=None, config=None)``.

    The arguments are those of ``odradek.Cluster``."""
    with ExitStack() as stack:

        def start(
            brokers: int = 3, racks: Sequence[str] | None = None, config: Mapping[str, object] | None = None
        ) -> Cluster:
            made = stack.enter_context(_cluster(pytestconfig, brokers, racks, config))
            stack.callback(pytestconfig.stash[_CLUSTERS].remove, made)
            return made

        yield start


def _cluster(
    pytestconfig: pytest.Config, brokers: int, racks: Sequence[str] | None, config: Mapping[str, object] | None
) -> Cluster:
    """Returns a cluster whose nodes' logs are in the reports of failed tests."""
    from odradek.testing.cluster import Cluster

    # At INFO the reports of failed tests name refused requests with their reasons.
    made = Cluster(brokers, racks=racks or None, config=config, log_level="INFO")
    pytestconfig.stash.setdefault(_CLUSTERS, []).append(made)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    broker = item.config.stash.get(_BROKER, None)
    item.stash[_LOG_SIZE] = broker.log_size() if broker is not None else 0
    clusters = item.config.stash.get(_CLUSTERS, [])
    item.stash[_LOG_SIZES] = {id(cluster): cluster.log_sizes() for cluster in clusters}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the broker has logged since the start of a failed test to the test's report."""
    report = yield
    broker = item.config.stash.get(_BROKER, None)
    if broker is not None and report.failed and "odradek_broker" in getattr(item, "fixturenames", ()):
        text = broker.log_tail(item.stash.get(_LOG_SIZE, 0)).strip()
        report.sections += [("odradek broker's log", text)] if text else []
    if report.failed and _CLUSTER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        for cluster in item.config.stash.get(_CLUSTERS, []):
            sizes = item.stash.get(_LOG_SIZES, {}).get(id(cluster), {})
            for node in cluster.nodes:
                text = cluster.log_tail(node, sizes.get(node, 0)).strip()
                title = f"log of odradek's {'controller' if node == 'controller' else f'broker {node}'}"
                report.sections += [(title, text)] if text else []
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    broker = item.config.stash.get(_BROKER, None)
    last_words = None
    if broker is not None and broker.running:
        broker.faults.clear()
    elif broker is not None:
        last_words = broker.log_tail() if broker.failed else None
        broker.start()
    ended = _restore_clusters(item)
    registry = item.config.stash.get(_REGISTRY, None)
    if registry is not None:
        registry.faults.clear()
        registry.start()
    yield
    if last_words is not None:
        pytest.fail(f"the broker ended by itself; the end of its log:\n{last_words}", pytrace=False)
    if ended:
        pytest.fail("\n".join(ended), pytrace=False)


def _restore_clusters(item: pytest.Item) -> list[str]:
    """Lets the nodes of ``odradek_cluster`` go on after a test, heals their network and removes their faults.

    Returns the last words of those that have ended by themselves."""
    if "odradek_cluster" not in getattr(item, "fixturenames", ()):
        return []
    ended: list[str] = []
    for cluster in item.config.stash.get(_CLUSTERS, []):
        ended += [
            f"node {node} ended by itself; the end of its log:\n{cluster.log_tail(node)}" for node in cluster.failed()
        ]
        for node in cluster.nodes:
            cluster.resume(node)
        cluster.heal()
        cluster.start()
        cluster.clear_faults()
    return ended
