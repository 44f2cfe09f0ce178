"""The metrics of a broker, with the names of Kafka's MBeans as Prometheus' JMX exporter writes them.

``odradek_…`` are our own. The page is made in steps: a broker may have thousands of partitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from odradek.broker.coordinators.group_coordinator import GROUPS
from odradek.broker.loop.scheduler import Steps
from odradek.broker.partitions.log_upkeep import is_usable
from odradek.coordinator_runtime.states import CoordinatorState
from odradek.text.prometheus import Metric, MetricLines, escaped
from odradek.wire import schemas

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.coordinators.registry import AnyCoordinator, Coordinators
    from odradek.broker.front_end.connection import Connection
    from odradek.broker.front_end.request_times import RequestStatistics
    from odradek.broker.partitions.fetch_sessions import FetchSessions
    from odradek.broker.partitions.log_cleaner import BrokerLogCleaner
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.partitions.purgatory import Purgatory

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class MeasuredNode(Protocol):
        """The parts of a node that the page shows."""

        connections: set[Connection]
        coordinators: Coordinators
        fetch_sessions: FetchSessions
        purgatory: Purgatory

        @property
        def partitions(self) -> Mapping[tuple[str, int], Partition]: ...

        @property
        def existing_log_cleaner(self) -> BrokerLogCleaner | None: ...


EVERY_S = 0.5
KEPT = 120
"""The samples of a minute."""
STEP_PARTITIONS = 50
_REQUEST, _LOG, _PROTOCOL, _STATE = ("request",), ("topic", "partition"), ("protocol",), ("coordinator", "state")

METRICS: dict[str, Metric] = {
    "kafka_network_requestmetrics_requests_total": Metric("Requests since the start, by API", _REQUEST, "counter"),
    "kafka_network_requestmetrics_totaltimems": Metric(
        "Milliseconds from the begin of a request to its reply, with all waits", _REQUEST, "summary"
    ),
    "kafka_network_requestmetrics_requestbytes": Metric("Bytes of a request", _REQUEST, "summary"),
    "odradek_reply_bytes_total": Metric("Bytes of replies, by API", _REQUEST, "counter"),
    "kafka_server_socket_server_metrics_connection_count": Metric("Open connections, by listener", ("listener",)),
    "kafka_server_replicamanager_partitioncount": Metric("Partitions whose logs this broker has"),
    "kafka_server_replicamanager_leadercount": Metric("Partitions that this broker leads"),
    "kafka_server_replicamanager_offlinereplicacount": Metric("Partitions whose logs are offline"),
    "kafka_log_log_size": Metric("Bytes of a partition's log", _LOG),
    "kafka_log_log_logstartoffset": Metric("First offset of a partition's log", _LOG),
    "kafka_log_log_logendoffset": Metric("Offset that the next record of a partition gets", _LOG),
    "kafka_log_log_numlogsegments": Metric("Segments of a partition's log", _LOG),
    "kafka_server_group_coordinator_metrics_group_count": Metric("Groups, by protocol", _PROTOCOL),
    "odradek_coordinator_shards": Metric("Partitions of a coordinator's topic, by state", _STATE),
    "kafka_log_logcleanermanager_uncleanable_partitions_count": Metric("Partitions that the log cleaner cannot clean"),
    "kafka_log_logcleanermanager_max_dirty_percent": Metric("Largest share of a log that is not cleaned, in percent"),
    "kafka_log_logcleaner_deadthreadcount": Metric("Tasks of the log cleaner that have ended"),
    "odradek_log_cleanings_total": Metric("Cleanings of logs since the start", (), "counter"),
    "kafka_server_fetchsessioncache_numincrementalfetchsessions": Metric("Fetch sessions"),
    "kafka_server_delayedoperationpurgatory_fetch_size": Metric("Fetches that wait for records"),
    "odradek_event_loop_lag_seconds": Metric("Seconds by which a timer of the event loop came late", (), "summary"),
    "odradek_event_loop_lag_max_seconds": Metric("Longest lag of the event loop within the last minute"),
}


class LoopLag:
    """``begin`` starts the samples. ``seconds`` and ``samples``: of all; ``longest``: of the last minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds = 0.0
        self.samples = 0
        self._loop = loop
        self._last: deque[float] = deque(maxlen=KEPT)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def longest(self) -> float:
        return max(self._last, default=0.0)

    def begin(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._note, self._loop.time() + EVERY_S)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, due_s: float) -> None:
        late_s = max(self._loop.time() - due_s, 0.0)
        self.samples += 1
        self.seconds += late_s
        self._last.append(late_s)
        self.begin()


class BrokerMetrics:
    """``page`` makes the text of all metrics."""

    def __init__(self, node: MeasuredNode, times: RequestStatistics, lag: LoopLag) -> None:
        self._node = node
        self._times = times
        self._lag = lag

    def page(self) -> Steps[str]:
        lines = MetricLines(METRICS)
        self._add_requests(lines)
        self._add_connections(lines)
        yield from self._logs_in_steps(lines)
        self._add_coordinators(lines)
        self._add_cleaner(lines)
        node, lag = self._node, self._lag
        lines.add("kafka_server_fetchsessioncache_numincrementalfetchsessions", (), len(node.fetch_sessions))
        lines.add("kafka_server_delayedoperationpurgatory_fetch_size", (), len(node.purgatory))
        lines.add_summary("odradek_event_loop_lag_seconds", (), lag.seconds, lag.samples)
        lines.add("odradek_event_loop_lag_max_seconds", (), lag.longest)
        yield None
        return lines.text()

    def _add_requests(self, lines: MetricLines) -> None:
        for key, times in sorted(self._times.by_api.items()):
            api = (schemas.api_name(key).title().replace("_", ""),)
            lines.add("kafka_network_requestmetrics_requests_total", api, times.requests)
            lines.add_summary("kafka_network_requestmetrics_totaltimems", api, times.seconds * 1000, times.requests)
            lines.add_summary("kafka_network_requestmetrics_requestbytes", api, times.request_bytes, times.requests)
            lines.add("odradek_reply_bytes_total", api, times.reply_bytes)

    def _add_connections(self, lines: MetricLines) -> None:
        listeners = Counter("" if one.listener is None else one.listener.name for one in self._node.connections)
        for name, count in sorted(listeners.items()):
            lines.add("kafka_server_socket_server_metrics_connection_count", (escaped(name),), count)

    def _logs_in_steps(self, lines: MetricLines) -> Steps[None]:
        partitions = self._node.partitions
        led = offline = 0
        for number, ((topic, index), partition) in enumerate(sorted(partitions.items())):
            led += partition.role.value == "leader"
            if number % STEP_PARTITIONS == STEP_PARTITIONS - 1:
                yield None
            if not is_usable(partition):
                offline += 1
                continue
            labels, log = (escaped(topic), str(index)), partition.log
            lines.add("kafka_log_log_size", labels, log.size)
            lines.add("kafka_log_log_logstartoffset", labels, log.log_start_offset)
            lines.add("kafka_log_log_logendoffset", labels, log.log_end_offset)
            lines.add("kafka_log_log_numlogsegments", labels, len(log.segment_list))
        lines.add("kafka_server_replicamanager_partitioncount", (), len(partitions))
        lines.add("kafka_server_replicamanager_leadercount", (), led)
        lines.add("kafka_server_replicamanager_offlinereplicacount", (), offline)

    def _add_coordinators(self, lines: MetricLines) -> None:
        classic = consumer = 0
        for coordinator in self._node.coordinators:
            states = Counter(state for state, _ in _shards(coordinator))
            for state in CoordinatorState:
                if states[state]:
                    name = coordinator.type.name.replace(" ", "_")
                    lines.add("odradek_coordinator_shards", (name, state.value), states[state])
            if coordinator.type is GROUPS:
                for _, shard in _shards(coordinator):
                    classic += len(shard.groups)
                    consumer += len(shard.consumer_groups)
        lines.add("kafka_server_group_coordinator_metrics_group_count", ("classic",), classic)
        lines.add("kafka_server_group_coordinator_metrics_group_count", ("consumer",), consumer)

    def _add_cleaner(self, lines: MetricLines) -> None:
        cleaner = self._node.existing_log_cleaner
        if cleaner is None:
            return
        status = cleaner.status()
        lines.add("kafka_log_logcleanermanager_uncleanable_partitions_count", (), len(status.uncleanable))
        lines.add("kafka_log_logcleanermanager_max_dirty_percent", (), 100 * status.max_dirty_ratio)
        lines.add("kafka_log_logcleaner_deadthreadcount", (), status.dead_thread_count)
        lines.add("odradek_log_cleanings_total", (), status.cleanings)


def _shards(coordinator: AnyCoordinator) -> Iterator[tuple[CoordinatorState, Any]]:
    """Yields the state and the shard of each partition that this broker coordinates."""
    runtime = coordinator.made_runtime
    if runtime is not None:
        for driver in runtime.drivers.values():
            yield driver.state, driver.shard
