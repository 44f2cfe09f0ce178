"""The metrics of a broker, from its page: names, types and values after known requests."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support import promtool
from support.brokers import Wire, create_offsets_topic
from support.logs import batch
from support.metrics_page import page_text, serving
from support.peers import Peer
from support.prometheus_text import Sample, read_metrics

from odradek.broker.metrics.broker_metrics import METRICS
from odradek.broker.metrics.page import add_metrics
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.wire import frames
from odradek.wire.api_keys import FETCH, OFFSET_COMMIT, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "broker-metrics.md"
REQUESTS = "kafka_network_requestmetrics_requests_total"
TIMES = "kafka_network_requestmetrics_totaltimems"
NAMES_OF_MBEANS = {"log_logcleanermanager_uncleanable_partitions", "server_group_coordinator_metrics_group"}
"""Gauges whose names end with ``_count``, because Kafka's do. The first one is there where the log cleaner runs."""


async def scrape(broker: BrokerServer) -> dict[Sample, float]:
    return read_metrics(await page_text(broker))


def run(scenario: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario, 30))


def sample(name: str, **labels: str) -> Sample:
    return name, tuple(labels.items())


def produce_message(count: int = 3) -> dict[str, Any]:
    topic = {"name": "t", "partition_data": [{"index": 0, "records": batch(count)}]}
    return {"transactional_id": None, "acks": 1, "timeout": 9000, "topic_data": [topic]}


def fetch_message(wait_ms: int) -> dict[str, Any]:
    wanted = [{"partition": 0, "fetch_offset": 3, "partition_max_bytes": 1 << 20}]
    return {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
            "topics": [{"topic": "t", "partitions": wanted}]}  # fmt: skip


def test_requests_are_counted_by_api_with_their_times_and_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=2)
            peer = Peer(broker)
            before = await scrape(broker)
            assert sample(REQUESTS, request="Produce") not in before
            for _ in range(4):
                await peer.ask(PRODUCE, 9, produce_message())
            asked = frames.encode_request(PRODUCE, 9, 7, "c", produce_message())
            replied = await peer.exchange(asked)
            await peer.ask(FETCH, 4, fetch_message(0))
            found = await scrape(broker)
            assert found[sample(REQUESTS, request="Produce")] == found[sample(f"{TIMES}_count", request="Produce")] == 5
            assert found[sample(REQUESTS, request="Fetch")] == 1
            size = found[sample("kafka_network_requestmetrics_requestbytes_sum", request="Produce")]
            assert size == 5 * (len(asked) - 4)
            assert replied is not None
            assert found[sample("odradek_reply_bytes_total", request="Produce")] == 5 * (len(replied) + 4)
            assert 0 < found[sample(f"{TIMES}_sum", request="Produce")] < 10_000
            peer.close()

    run(scenario())


def test_the_time_of_a_request_has_its_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=1)
            peer = Peer(broker)
            await peer.ask(PRODUCE, 9, produce_message())
            await peer.ask(FETCH, 4, fetch_message(150))
            found = await scrape(broker)
            assert found[sample(f"{TIMES}_sum", request="Fetch")] >= 100
            peer.close()

    run(scenario())


def test_commits_of_the_fast_path_are_counted_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=1)
            create_offsets_topic(broker)
            peer = Peer(broker)
            for offset in range(30):
                row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
                message = {
                    "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1,
                    "topics": [{"name": "t", "partitions": [row]}],
                }  # fmt: skip
                asked = frames.encode_request(OFFSET_COMMIT, 2, offset, "c", message)
                await peer.exchange(asked)
            assert broker.commit_fast_path.uses, "this test needs the fast path"
            found = await scrape(broker)
            assert found[sample(REQUESTS, request="OffsetCommit")] == 30
            size = found[sample("kafka_network_requestmetrics_requestbytes_sum", request="OffsetCommit")]
            assert size == 30 * (len(asked) - 4)
            assert found[sample("kafka_server_group_coordinator_metrics_group_count", protocol="classic")] == 1
            peer.close()

    run(scenario())


def test_the_requests_of_a_login_are_counted_too(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": "SAFE://127.0.0.1:0", "listener.security.protocol.map": "SAFE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.safe.plain.sasl.jaas.config": f'{module} required user_alice="secret";',
    }  # fmt: skip

    async def scenario() -> None:
        broker = BrokerServer(BrokerConfig(settings), tmp_path, None)
        add_metrics(broker, ("127.0.0.1", 0), asyncio.get_running_loop())
        await broker.start()
        try:
            reader, writer = await asyncio.open_connection(*broker.address)
            login = {"auth_bytes": b"\0alice\0secret"}
            for key, version, message in ((SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}), (SASL_AUTHENTICATE, 2, login)):
                writer.write(frames.encode_request(key, version, 1, "c", message))
                reply = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                assert frames.decode_reply(key, version, reply)[1].error_code == 0
            found = await scrape(broker)
            assert found[sample(REQUESTS, request="SaslHandshake")] == 1
            assert found[sample(REQUESTS, request="SaslAuthenticate")] == 1
            assert found[sample("odradek_reply_bytes_total", request="SaslAuthenticate")] == 4 + len(reply)
            writer.close()
        finally:
            await broker.stop()

    run(scenario())


def test_the_page_shows_logs_connections_and_coordinators(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=120)
            create_offsets_topic(broker)
            peer = Peer(broker)
            await peer.ask(PRODUCE, 9, produce_message())
            found = await scrape(broker)
            log = {"topic": "t", "partition": "0"}
            assert found[sample("kafka_log_log_size", **log)] == len(batch(3))
            assert found[sample("kafka_log_log_logendoffset", **log)] == 3
            assert found[sample("kafka_log_log_logstartoffset", **log)] == 0
            assert found[sample("kafka_log_log_numlogsegments", **log)] == 1
            assert found[sample("kafka_server_replicamanager_partitioncount")] == 121
            assert found[sample("kafka_server_replicamanager_leadercount")] == 121
            assert found[sample("kafka_server_replicamanager_offlinereplicacount")] == 0
            shards = {labels: count for (name, labels), count in found.items() if name == "odradek_coordinator_shards"}
            assert sum(shards.values()) >= 1
            assert sample("kafka_server_socket_server_metrics_connection_count", listener="") in found
            peer.close()

    run(scenario())


def test_the_lag_of_the_loop_is_measured(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            while not (await scrape(broker))[sample("odradek_event_loop_lag_seconds_count")]:
                await asyncio.sleep(0.05)
            found = await scrape(broker)
            assert 0 <= found[sample("odradek_event_loop_lag_max_seconds")] < 20

    run(scenario())


def test_promtool_objects_only_to_names_of_kafkas_exporter(tmp_path: Path) -> None:
    """``promtool check metrics``: the two names are those of Kafka's MBeans."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=2)
            peer = Peer(broker)
            await peer.ask(PRODUCE, 9, produce_message())
            found = promtool.problems(await page_text(broker))
            names = {line.partition(" ")[0] for line in found}
            assert names <= {f"kafka_{name}_count" for name in NAMES_OF_MBEANS}
            assert "kafka_server_group_coordinator_metrics_group_count" in names
            assert all("_count" in line.partition(" ")[2] for line in found)
            peer.close()

    run(scenario())


def test_the_command_serves_the_page(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}"]
    with subprocess.Popen([sys.executable, "-m", "odradek", *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready 127.0.0.1:")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
                found = read_metrics(reply.read().decode())
            assert found[sample("kafka_server_replicamanager_partitioncount")] == 0
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--metrics", "9404"), "--metrics takes HOST:PORT, for example 127.0.0.1:9404, not '9404'"),
        (("--metrics", "127.0.0.1:0"), "not '127.0.0.1:0': Prometheus needs a port that stays, so it is not 0"),
        (("--metrics", "a:1", "--brokers", "2"), "--metrics is for one broker: leave --brokers out"),
    ],
)
def test_a_wrong_address_of_the_page_is_one_line(
    tmp_path: Path, options: tuple[str, ...], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "odradek", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    assert subprocess.run([*command, *options], check=False).returncode == 2
    assert line in capfd.readouterr().err


def test_the_docs_have_every_metric() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    wanted = [
        (name, ", ".join(f"`{label}`" for label in metric.labels) or "–", metric.type, metric.help)
        for name, metric in METRICS.items()
    ]
    assert rows == wanted


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_broker_without_the_page_loads_none_of_its_modules(tmp_path: Path, is_measured: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = ["--metrics", f"127.0.0.1:{free.getsockname()[1]}"] if is_measured else []
    command = ["-X", "importtime", "-m", "odradek", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    imports = tmp_path / "imports"
    with (
        imports.open("w") as log,
        subprocess.Popen([sys.executable, *command, *page], stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready 127.0.0.1:")
            with Wire(ready.split()[1]) as wire:
                wire.receive(PRODUCE, 9, wire.send(PRODUCE, 9, produce_message()))
        finally:
            process.terminate()
    loaded = {line.rpartition("|")[2].strip() for line in imports.read_text().splitlines()}
    assert "odradek.broker.front_end.connection" in loaded
    own = ("odradek.broker.metrics", "odradek.broker.front_end.request_times")
    found = {name for name in loaded if name.startswith(own)}
    assert bool(found) == is_measured, found
