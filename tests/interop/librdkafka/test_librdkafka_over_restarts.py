"""librdkafka's own C suite on three brokers with three replicas: at rest, and while they restart, one after another.
Each broker stops cleanly; the next one ``BETWEEN_S`` after all replicas are in sync. See ``test_librdkafka_suite`` for
the script.

The suite as it is ends a test at each refused connection. For the restarts, build it with a ``test_error_cb`` (test.c)
that only prints ``_TRANSPORT`` and ``_ALL_BROKERS_DOWN``. With ODRADEK_LIBRDKAFKA_PROTOCOL=consumer, the tests run
through KIP-848 groups. The same on three nodes of Apache Kafka, for the tests that are named::

    python tests/interop/librdkafka/test_librdkafka_over_restarts.py apache 0041_fetch_max_bytes …
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]

import pytest
from support.apache_cluster import ApacheCluster
from test_librdkafka_suite import PIECE_S, SUITE, allowed, pieces

import odradek
from bench.apache import ApacheBroker, free_port
from odradek.client import Admin
from odradek.core.errors import OdradekError

SETTINGS = {
    "num.partitions": "4", "default.replication.factor": "3", "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "3000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}  # fmt: skip
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_LOGIN = f'{_MODULE} required username="node" password="node" user_node="node";'
ONLY_APACHE = {
    "auto.create.topics.enable": "true", "auto.leader.rebalance.enable": "true", "replica.lag.time.max.ms": "30000",
    "transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2",
    # Its nodes start only as a super user. No ACL denies anything to one, so the clients must be others (0109).
    "super.users": "User:node", "sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.controller.protocol": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN", "inter.broker.listener.name": "NODES",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,NODES:SASL_PLAINTEXT",
    "listener.name.controller.plain.sasl.jaas.config": _LOGIN, "listener.name.nodes.plain.sasl.jaas.config": _LOGIN,
}  # fmt: skip
"""Defaults of ours, and of Kafka, which ``ApacheCluster`` sets otherwise; a listener for the nodes."""
BETWEEN_S, IN_SYNC_S, POLL_S = 15.0, 300.0, 0.3
REASONS = {
    r"Connection refused": "an event about a broker that is down ends a test",
    r"replication factor of 3 cannot be reached|INVALID_REPLICATION_FACTOR": "three replicas while a broker is down",
    r"Not coordinator": "a client does not ask again when the coordinator has moved",
    r"Not leader for partition|Leader not available": "a topic with one replica, or whose leader has just moved",
    r"ListConsumerGroups to return 0 errors, got": "a broker that is down cannot list its groups",
    r"-unauthorized: got: Broker: Topic authorization failed|-notexists: got: Broker: Unknown topic or partition":
        "a closed connection makes a client look for each topic again",
    r"The group is not empty": "the sessions of members begin again at the next coordinator",
    r"Failed to close consumer: Local: Fatal error": "a static member that forgot its id commits and is fenced",
    r"timed out \(timeout set to": "the test's own limit of time",
}  # fmt: skip
"""What ends a test at certain moments of a restart, on Apache Kafka as well: part of the test's own message → why."""


@contextmanager
def restarting(restart: Callable[[int], object], brokers: Sequence[int]) -> Iterator[list[int]]:
    """Restarts the brokers in turn in the background. Yields the list of those that were restarted."""
    ended, done, failures = threading.Event(), list[int](), list[BaseException]()

    def work() -> None:
        try:
            while not ended.wait(BETWEEN_S):
                broker = brokers[len(done) % len(brokers)]
                restart(broker)
                done.append(broker)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()
    assert not failures, failures


def failures_of(bootstrap: str, names: Sequence[str], script: str) -> dict[str, str]:
    """The tests that did not pass, with their message."""
    protocol = os.environ.get("ODRADEK_LIBRDKAFKA_PROTOCOL", "classic")
    environment = os.environ | {
        "BOOTSTRAP": bootstrap, "TESTS": " ".join(names), "TEST_TIMEOUT": "300", "PROTOCOL": protocol,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, timeout=2 * PIECE_S, check=False
    )
    found = dict(parted(done.stdout))
    assert found.keys() == set(names), done.stdout[-4000:] + done.stderr[-1000:]
    is_good = ("PASS",) if protocol == "classic" else ("PASS", "SKIP")
    return {name: text for name, text in found.items() if not text.startswith(is_good)}


def parted(written: str) -> Iterator[tuple[str, str]]:
    """Each test, and what the script wrote about it."""
    parts = re.split(r"^(?=PASS |FAIL |SKIP )", written, flags=re.MULTILINE)
    return ((part.split()[1], part) for part in parts if part[:5] in ("PASS ", "FAIL ", "SKIP "))


def unexplained(failures: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in failures.items() if not any(re.search(one, text) for one in REASONS)}


def script_of_the_suite() -> str:
    script = os.environ.get(SUITE)
    if not script:
        pytest.skip(f"{SUITE} does not name the script that runs librdkafka's suite")
    return script


def test_the_output_of_the_script_is_read() -> None:
    written = (
        "PASS 0001_a  1s\nFAIL 0081_b:c  2s\n     ### failed\n     Broker: Not coordinator\nlibrdkafka: 1 passed\n"
    )
    found = dict(parted(written))
    assert list(found) == ["0001_a", "0081_b:c"]
    assert unexplained({"0081_b:c": found["0081_b:c"]}) == {}
    assert list(unexplained({"0001_a": "FAIL 0001_a  2s\n     timed out\n"})) == ["0001_a"]


@pytest.mark.slow
@pytest.mark.parametrize("names", pieces(), ids=lambda names: names[0])
def test_the_tests_pass_on_three_brokers(names: list[str]) -> None:
    script = script_of_the_suite()
    with odradek.Cluster(3, config=SETTINGS) as cluster:
        assert failures_of(cluster.bootstrap_servers, names, script) == {}


@pytest.mark.slow
@pytest.mark.parametrize("names", pieces(), ids=lambda names: names[0])
def test_the_tests_pass_during_rolling_restarts(names: list[str]) -> None:
    script = script_of_the_suite()
    with odradek.Cluster(3, config=SETTINGS) as cluster:

        def restart(broker: int) -> None:
            cluster.stop(broker)
            cluster.start(broker)
            cluster.wait_until_in_sync(within_s=IN_SYNC_S)

        with restarting(restart, cluster.brokers) as restarted:
            failures = failures_of(cluster.bootstrap_servers, names, script)
    print(f"{len(names) - len(failures)} of {len(names)} passed, {len(restarted)} restarts", *failures.values())
    assert restarted
    assert unexplained(failures) == {}


# --- Apache Kafka ---------------------------------------------------------------------------------------------------


def wait_until_in_sync(bootstrap: str) -> None:
    """Waits until all replicas of all topics are in sync. Raises TimeoutError."""
    deadline = time.monotonic() + IN_SYNC_S
    while time.monotonic() < deadline:
        try:
            with Admin(bootstrap) as admin:
                partitions = [one for topic in admin.describe_topics().values() for one in topic.partitions]
        except OdradekError:  # a topic was deleted meanwhile, or the broker is about to serve
            partitions = None
        if partitions is not None and all(set(one.isr) == set(one.replicas) for one in partitions):
            return
        time.sleep(POLL_S)
    raise TimeoutError("not all replicas are in sync")


def add_listener(node: ApacheBroker, name: str) -> None:
    """Adds a listener to the settings of a node that was not started yet."""
    file, port = node.directory / "server.properties", free_port()
    said = [line for line in file.read_text().splitlines() if line.startswith("listeners=")][-1]
    with file.open("a") as settings:  # a later line counts
        settings.write(f"{said},{name}://127.0.0.1:{port}\n")
        settings.write(f"advertised.listeners=PLAINTEXT://{node.bootstrap},{name}://127.0.0.1:{port}\n")


def failures_on_apache_kafka(directory: Path, names: Sequence[str], script: str) -> dict[str, str]:
    """The tests that fail while three nodes of Apache Kafka restart as ours do."""
    apache = ApacheCluster(directory, SETTINGS | ONLY_APACHE)
    for node in apache.nodes.values():
        add_listener(node, "NODES")
    try:
        apache.start()

        def restart(broker: int) -> None:
            apache.nodes[broker].stop()
            apache.nodes[broker].start(IN_SYNC_S)
            wait_until_in_sync(apache.bootstrap)

        with restarting(restart, list(apache.nodes)):
            return failures_of(apache.bootstrap, names, script)
    finally:
        apache.stop()


def main(side: str, *names: str) -> int:
    if side != "apache" or SUITE not in os.environ:
        print(f"give apache and the names of tests, and set {SUITE}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        failures = failures_on_apache_kafka(Path(directory), names or allowed(), os.environ[SUITE])
    print(*failures.values(), f"{len(failures)} tests failed", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or [""]))
