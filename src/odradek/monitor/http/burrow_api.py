"""The replies of Burrow's HTTP API v3: its keys, types, messages and codes, from the tracker's view of one cluster."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.verdict_rules import Status, group_status
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.http.json_api import Json

_MOST_PARTITIONS = 200_000


class Reply(NamedTuple):
    """The code of a reply and its JSON. ``request`` is added by the service, which knows the URL."""

    code: int
    body: Json


def _refusal(code: int, message: str) -> Reply:
    return Reply(code, {"error": True, "message": message})


class BurrowApi:
    """The replies about one cluster. The caller holds the lock of the tracker. Times are milliseconds."""

    def __init__(self, tracker: GroupTracker, cluster: str, servers: list[str]) -> None:
        self._tracker, self._cluster, self._servers = tracker, cluster, servers

    @property
    def _now_ms(self) -> int:
        return self._tracker.last_poll_ms

    def clusters(self) -> Reply:
        return Reply(200, {"error": False, "message": "cluster list returned", "clusters": [self._cluster]})

    def cluster(self, cluster: str) -> Reply:
        if cluster != self._cluster:
            return _refusal(404, "cluster module not found")
        module = {
            "class-name": "kafka", "servers": self._servers, "client-profile": {
                "name": "", "client-id": "odradek", "kafka-version": "", "tls": None, "sasl": None
            }, "topic-refresh": 0, "offset-refresh": 0,
        }  # fmt: skip
        return Reply(200, {"error": False, "message": "cluster module detail returned", "module": module})

    def topics(self, cluster: str) -> Reply:
        if cluster != self._cluster:
            return _refusal(404, "cluster not found")
        names = sorted({tp.topic for tp in self._tracker.partitions()})
        return Reply(200, {"error": False, "message": "topic list returned", "topics": names})

    def topic(self, cluster: str, topic: str) -> Reply:
        partitions, bounds = self._tracker.bounds(self._now_ms)
        ends = {
            tp.partition: int(end)
            for tp, end in zip(partitions, bounds.ends.tolist(), strict=True)
            if tp.topic == topic and end >= 0
        }
        if cluster != self._cluster or not any(tp.topic == topic for tp in partitions):
            return _refusal(404, "cluster or topic not found")
        offsets = [ends[number] for number in sorted(ends)]
        return Reply(200, {"error": False, "message": "topic offsets returned", "offsets": offsets})

    def topic_consumers(self, cluster: str, topic: str) -> Reply:
        if cluster != self._cluster:
            return _refusal(404, "cluster not found")
        names = self._tracker.groups_of_topic(topic)
        return Reply(200, {"error": False, "message": "consumers of topic returned", "consumers": names})

    def consumers(self, cluster: str) -> Reply:
        if cluster != self._cluster:
            return _refusal(404, "cluster not found")
        names = self._tracker.group_names()
        return Reply(200, {"error": False, "message": "consumer list returned", "consumers": names})

    def consumer(self, cluster: str, group: str) -> Reply:
        """Returns the windows of a group: for each topic a list by partition number, oldest commits first."""
        slots = self._tracker.slots(group)
        if cluster != self._cluster or not (len(slots) or group in self._tracker.group_states):
            return _refusal(404, "cluster or consumer not found")
        topics: dict[str, list[Json]] = {}
        if len(slots):
            verdicts, _ = self._tracker.judge(slots, self._now_ms)
            for at, tp in enumerate(self._tracker.partitions_of(slots)):
                rows = topics.setdefault(tp.topic, [])
                if not 0 <= tp.partition < _MOST_PARTITIONS:
                    continue  # no topic has this partition, and the list would be too long
                while len(rows) <= tp.partition:
                    rows.append({"offsets": [], "owner": "", "client_id": "", "current-lag": 0})
                window: list[Json | None] = [_commit(*one) for one in self._tracker.window(int(slots[at]))]
                missing: list[Json | None] = [None] * (self._tracker.rules.intervals - len(window))
                rows[tp.partition] |= {"offsets": missing + window, "current-lag": max(0, int(verdicts.lags[at]))}
        return Reply(200, {"error": False, "message": "consumer detail returned", "topics": topics})

    def status(self, cluster: str, group: str, *, everything: bool) -> Reply:
        """Returns the status of a group; ``everything``: also of the partitions that are OK."""
        slots = self._tracker.slots(group)
        is_known = cluster == self._cluster and bool(len(slots) or group in self._tracker.group_states)
        partitions: list[Json] = []
        worst, complete, total = Status.NOTFOUND, 0, 0
        if is_known and len(slots):
            partitions = self._partitions(slots)
            worst = group_status([Status[one["status"]] for one in partitions])
            complete = sum(one["complete"] == 1.0 for one in partitions)
            total = sum(one["current_lag"] for one in partitions)
        if is_known and worst is Status.NOTFOUND:
            worst = Status.OK
        shown = partitions if everything else [one for one in partitions if one["status"] not in ("OK", "NOTFOUND")]
        status = {
            "cluster": cluster,
            "group": group,
            "status": worst.name,
            "complete": 1.0 if not is_known else _share(complete, len(partitions)) if partitions else 0,
            "partitions": shown,
            "partition_count": len(partitions),
            "maxlag": max(partitions, key=lambda one: int(one["current_lag"]), default=None),
            "totallag": total,
        }
        body = {"error": False, "message": "consumer status returned", "status": status}
        return Reply(200 if is_known else 404, body)

    def _partitions(self, slots: Array) -> list[Json]:
        verdicts, _ = self._tracker.judge(slots, self._now_ms)
        statuses = verdicts.statuses
        rows = []
        for at, tp in enumerate(self._tracker.partitions_of(slots)):
            window = self._tracker.window(int(slots[at]))
            rows.append({
                "topic": tp.topic,
                "partition": tp.partition,
                "owner": "",
                "client_id": "",
                "status": Status(int(statuses[at])).name,
                "start": _commit(*window[0]),
                "end": _commit(*window[-1]),
                "current_lag": max(0, int(verdicts.lags[at])),
                "complete": _share(len(window), self._tracker.rules.intervals),
            })  # fmt: skip
        return sorted(rows, key=lambda row: (row["topic"], row["partition"]))

    def delete(self, cluster: str, group: str, topic: str | None = None) -> Reply:
        """Forgets a group, or its partitions of a topic, in this view. Kafka keeps them. Burrow replies 200 always."""
        if cluster == self._cluster:
            if topic is None:
                self._tracker.forget_group(group)
            else:
                self._tracker.forget_topic(group, topic)
        return Reply(200, {"error": False, "message": "consumer group removed"})


def _share(part: int, whole: int) -> float:
    """Returns a share as Go writes its 32-bit numbers."""
    return float(str(np.float32(part / whole)))


def _commit(offset: int, time_ms: int, lag: int) -> Json:
    return {"offset": offset, "timestamp": time_ms, "observedAt": time_ms, "lag": None if lag < 0 else lag}
