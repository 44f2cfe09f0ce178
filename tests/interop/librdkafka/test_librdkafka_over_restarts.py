"""librdkafka's own C suite while three brokers restart, one after another: each stops cleanly, and the next one when
all replicas are in sync. See ``test_librdkafka_suite`` for the script.

The suite as it is ends a test at each refused connection. Build it with a ``test_error_cb`` (test.c) that only prints
``_TRANSPORT`` and ``_ALL_BROKERS_DOWN``.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from test_librdkafka_suite import PIECE_S, SUITE, allowed, pieces

import odradek

SETTINGS = {
    "num.partitions": 4, "default.replication.factor": 3, "min.insync.replicas": 2, "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5, "group.initial.rebalance.delay.ms": 3_000,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}  # fmt: skip
BETWEEN_S = 5.0
NOT_OVER_RESTARTS = {
    # These fail on three restarting nodes of Apache Kafka 4.3, too.
    "0020_destroy_hang": "the consumer gets nothing within 10 s",
    "0103_transactions": "the limit of time of a part",
    "0081_admin:do_test_CreateTopics": "three replicas while one of three brokers is down",
    "0081_admin:do_test_ListConsumerGroups": "a group is at a coordinator that is down",
    # These fail by the moment of a restart. Apache Kafka, whose restarts take three times as long, passed them once.
    "0041_fetch_max_bytes": "a producer that is not idempotent writes again what has no answer",
    "0085_headers": "three replicas while one of three brokers is down",
    "0091_max_poll_interval_timeout": "a rebalance more than the test allows",
    "0109_auto_create_topics": "its limit of time",
    "0081_admin:do_test_AlterConfigs": "the broker that it asks is down for longer than its limit of time",
    "0081_admin:do_test_DescribeConsumerGroups": "sessions begin again at each coordinator, and the group stays",
}


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


def results_of(bootstrap: str, names: Sequence[str], script: str) -> tuple[dict[str, str], str]:
    """PASS, FAIL or SKIP of each test, and what the script wrote."""
    environment = os.environ | {"BOOTSTRAP": bootstrap, "TESTS": " ".join(names), "TEST_TIMEOUT": "300"}
    done = subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, timeout=2 * PIECE_S, check=False
    )
    rows = [line.split() for line in done.stdout.splitlines() if line[:5] in ("PASS ", "FAIL ", "SKIP ")]
    return {name: result for result, name, *_ in rows}, done.stdout[-4000:] + done.stderr[-1000:]


def test_the_exceptions_are_tests_of_the_list() -> None:
    assert set(allowed()) >= set(NOT_OVER_RESTARTS)


@pytest.mark.slow
@pytest.mark.parametrize("names", pieces(), ids=lambda names: names[0])
def test_the_tests_pass_during_rolling_restarts(names: list[str]) -> None:
    script = os.environ.get(SUITE)
    if not script:
        pytest.skip(f"{SUITE} does not name the script that runs librdkafka's suite")
    wanted = [one for one in names if one not in NOT_OVER_RESTARTS]
    with odradek.Cluster(3, config=SETTINGS) as cluster:

        def restart(broker: int) -> None:
            cluster.stop(broker)
            cluster.start(broker)
            cluster.wait_until_in_sync(within_s=300)

        with restarting(restart, cluster.brokers) as restarted:
            results, written = results_of(cluster.bootstrap_servers, wanted, script)
        print(f"{len(restarted)} restarts")
        assert restarted
    assert results == dict.fromkeys(wanted, "PASS"), written
