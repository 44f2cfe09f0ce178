"""Records conversations with one controller and three brokers of Apache Kafka 4.3, from its jars:
``python -m tests.oracle.record_clusters [scenario …]``.

Each node is a process of its own on loopback. Without names, all scenarios are recorded; with names, their traces
replace those in ``traces/clusters.json``, ``replicas.json``, ``racks.json``, ``moving_groups.json`` and
``moving_transactions.json``. The comparison with Odradek needs no Java.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from cluster_conversation import BROKERS, CONTROLLER, CONTROLLER_ID, RACKS, SETTINGS, run_conversation
from cluster_group_run import SETTINGS as GROUP_SETTINGS
from cluster_group_run import run_group_conversation
from cluster_scenarios import SCENARIOS, base_of
from cluster_scenarios_failover import SCENARIOS as FAILOVER_SCENARIOS
from cluster_scenarios_groups import SCENARIOS as GROUP_SCENARIOS
from cluster_scenarios_racks import SCENARIOS as RACK_SCENARIOS
from cluster_scenarios_racks import SETTINGS as RACK_SETTINGS
from cluster_scenarios_replicas import SCENARIOS as REPLICA_SCENARIOS
from cluster_scenarios_replicas import SETTINGS as REPLICA_SETTINGS
from cluster_scenarios_transactions import SCENARIOS as TRANSACTION_SCENARIOS
from cluster_transaction_run import SETTINGS as TRANSACTION_SETTINGS
from cluster_transaction_run import run_transaction_conversation
from recording import TRACES, Step, packed_traces
from scenarios_log import produce_message
from support.brokers import Wire
from support.jvm import kafka_java_options
from transaction_requests import TRANSACTIONS_TOPIC

from bench.apache import ApacheBroker, new_cluster_id
from odradek.batches.encode import encode_batch
from odradek.codecs.transaction_state import Transaction, TransactionState, encode_key, encode_value
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CREATE_TOPICS, OFFSET_COMMIT, PRODUCE

TRACE, REPLICAS, IN_RACKS, GROUPS, TRANSACTIONS = (
    TRACES / f"{name}.json" for name in ("clusters", "replicas", "racks", "moving_groups", "moving_transactions")
)
HEAP = "220m"
# The default, 128 MiB in one array, does not fit into the heap.
_OF_KAFKA = {"log.cleaner.dedupe.buffer.size": "10485760"}
ANSWER_S = 120
LOAD_PARTITIONS, LOAD_RECORDS, LOAD_BATCHES = 5_000, 40, 250
FILL_TOPIC, FILL_WIDTH, FILL_COMMITS, FILLING = "filler", 200, 400, "x" * 4_000


class ApacheNodes:
    """``cluster_conversation.Nodes``: a controller and three brokers of Apache Kafka."""

    topics_of_a_sample = 60

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.cluster_id = new_cluster_id()
        self._nodes: dict[str, ApacheBroker] = {}
        for name in (CONTROLLER, *map(str, BROKERS)):
            node = ApacheBroker(directory / name, {}, heap=HEAP, java_options=kafka_java_options())
            self._nodes[name] = node
            listener = "CONTROLLER" if name == CONTROLLER else "PLAINTEXT"
            own = {
                "process.roles": "controller" if name == CONTROLLER else "broker",
                "node.id": str(CONTROLLER_ID) if name == CONTROLLER else name,
                "controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{self._nodes[CONTROLLER].port}",
                "listeners": f"{listener}://127.0.0.1:{node.port}",
                "advertised.listeners": f"{listener}://127.0.0.1:{node.port}",
            }
            if name != CONTROLLER:
                own["broker.rack"] = RACKS[int(name)]
            with (node.directory / "server.properties").open("a") as file:
                file.writelines(f"{key}={value}\n" for key, value in {**own, **settings, **_OF_KAFKA}.items())

    def begin(self) -> None:
        for node in self._nodes.values():
            node.format(self.cluster_id)
            node.spawn()
        for node in self._nodes.values():
            node.wait(180)
        for node in self._nodes.values():
            _wait_until_served(node)

    def end(self) -> None:
        for node in self._nodes.values():
            for pid in node.pids:
                os.kill(pid, signal.SIGCONT)
            node.kill()

    def connect(self, node: str, client_id: str) -> Wire:
        return Wire(self._nodes[node].bootstrap, client_id, ANSWER_S)

    def ports(self) -> Mapping[str, int]:
        return {name: node.port for name, node in self._nodes.items()}

    def pass_ms(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def elapsed_ms(self) -> int:
        return int(time.monotonic() * 1000)

    def kill(self, node: str) -> None:
        self._nodes[node].kill()

    def stop(self, node: str) -> None:
        self._nodes[node].stop()

    def start(self, node: str) -> None:
        self._nodes[node].start(180)
        _wait_until_served(self._nodes[node])

    def pause(self, node: str) -> None:
        os.kill(self._nodes[node].pids[0], signal.SIGSTOP)

    def resume(self, node: str) -> None:
        os.kill(self._nodes[node].pids[0], signal.SIGCONT)

    def make_loads_slow(self, broker: str, group: str) -> None:
        """Commits some hundred MB, which a load reads."""
        parts = [
            {
                "partition_index": index,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": FILLING,
            }
            for index in range(FILL_WIDTH)
        ]
        message = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": FILL_TOPIC, "partitions": parts}],
        }  # fmt: skip
        topic = {"name": FILL_TOPIC, "num_partitions": FILL_WIDTH, "replication_factor": 1, "assignments": [],
                 "configs": []}  # fmt: skip
        with Wire(self._nodes[broker].bootstrap, "fill", ANSWER_S) as wire:
            wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
            for _ in range(FILL_COMMITS):
                while any(row.error_code for row in wire.call(OFFSET_COMMIT, 8, message).topics[0].partitions):
                    time.sleep(0.1)  # until the broker knows the topic

    def make_transaction_loads_slow(self, broker: str, partition: int) -> None:
        """Writes records of many partitions, which a load decodes one by one, and then none of it is left.

        A broker of Apache Kafka lets its own Admin write to an internal topic, and knows it by the client id."""
        now_ms = int(time.time() * 1000)
        many = frozenset(("filler", number) for number in range(LOAD_PARTITIONS))
        one = Transaction(1, -1, -1, 0, 60_000, TransactionState.ONGOING, many, now_ms, now_ms, 0)
        key, value = encode_key("filler"), encode_value(one, 0)
        data = encode_batch([SimpleRecord(key, value)] * LOAD_RECORDS, now_ms=now_ms)
        end = encode_batch([SimpleRecord(key, None)], now_ms=now_ms)
        with Wire(self._nodes[broker].bootstrap, "__admin_client", ANSWER_S) as wire:
            for batch in [data] * LOAD_BATCHES + [end]:
                reply = wire.call(PRODUCE, 9, produce_message(TRANSACTIONS_TOPIC, batch, partition))
                assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none, reply


def _wait_until_served(node: ApacheBroker) -> None:
    asked = {"client_software_name": "t", "client_software_version": "1"}
    deadline = time.monotonic() + 120
    while True:
        try:
            with Wire(node.bootstrap) as wire:
                wire.call(18, 3, asked)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@contextmanager
def apache_nodes(settings: Mapping[str, str]) -> Iterator[ApacheNodes]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as end:
        nodes = ApacheNodes(Path(directory), settings)
        end.callback(nodes.end)
        nodes.begin()
        yield nodes


def main(wanted: list[str]) -> int:
    failed = record(TRACE, SCENARIOS, SETTINGS, wanted)
    of_replicas = (*FAILOVER_SCENARIOS, *REPLICA_SCENARIOS)
    failed += record(REPLICAS, of_replicas, SETTINGS | REPLICA_SETTINGS, wanted)
    failed += record(IN_RACKS, RACK_SCENARIOS, SETTINGS | RACK_SETTINGS, wanted)
    failed += record(GROUPS, GROUP_SCENARIOS, GROUP_SETTINGS, wanted, run_group_conversation)
    failed += record(TRANSACTIONS, TRANSACTION_SCENARIOS, TRANSACTION_SETTINGS, wanted, run_transaction_conversation)
    print("failed:", ", ".join(failed) if failed else "none")
    return bool(failed)


def record(
    trace: Path, scenarios: Sequence[Callable[..., None]], settings: Mapping[str, str], wanted: list[str],
    run: Callable[[ApacheNodes, Any, int], list[Step]] = run_conversation,
) -> list[str]:  # fmt: skip
    """Records these scenarios, or the wanted ones of them. Returns the names of those that have failed."""
    traces = json.loads(trace.read_text()) if trace.exists() else {}
    failed: list[str] = []
    chosen = [one for one in scenarios if not wanted or one.__name__ in wanted]
    if not chosen:
        return failed
    with apache_nodes(settings) as nodes:
        for scenario in chosen:
            name = scenario.__name__
            begun = time.monotonic()
            try:
                traces[name] = run(nodes, scenario, base_of(scenario))
            except Exception:
                failed.append(name)
                traceback.print_exc()
            print(f"{name}: {len(traces.get(name, ()))} steps, {time.monotonic() - begun:.0f} s", flush=True)
            names = [one.__name__ for one in scenarios]
            trace.write_text(packed_traces({one: traces[one] for one in names if one in traces}))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
