"""The differences between the APIs here and in Apache Kafka 4.3, with reasons: the tables of ``docs/compatibility.md``.

``python -m tests.oracle.compatibility`` writes the tables into the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from recording import load

from odradek.broker.handlers import handler_files
from odradek.catalog.features import AT_FIRST, SUPPORTED
from odradek.wire import schemas

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "compatibility.md"


class Out(NamedTuple):
    """APIs that odradek does not serve. ``client`` is the effect for users."""

    what: str
    keys: tuple[int, ...]
    client: str
    why: str


OUT = (
    Out(
        "share groups",
        (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
        "A share consumer and `kafka-share-groups.sh --describe` report UNSUPPORTED_VERSION.",
        "Share groups do not exist here yet.",
    ),
    Out(
        "streams groups",
        (88, 89),
        "`kafka-streams-groups.sh --describe` reports UNSUPPORTED_VERSION.",
        "Streams groups do not exist here yet.",
    ),
    Out(
        "clients' metrics",
        (71, 72),
        "Nothing: clients push metrics only to a broker that announces these APIs. Apache Kafka announces "
        "them only if it has a metrics reporter that collects clients' metrics; without one it serves them, but does "
        "not announce them.",
        "No metrics reporter can be loaded here.",
    ),
)


class Difference(NamedTuple):
    """A reply that differs from Apache Kafka's. ``lines`` has every line in which the comparison of ``scenario``
    reports the difference."""

    scenario: str
    lines: tuple[str, ...]
    api: str
    request: str
    kafka: str
    here: str
    why: str


def _lines(reply: str, **fields: tuple[str, str]) -> tuple[str, ...]:
    """Lines for one reply: field → the values of Apache Kafka and of this broker, as JSON."""
    return tuple(f"{reply}.{field}: expected {theirs} found {ours}" for field, (theirs, ours) in fields.items())


_ERROR, _TEXT = ('"none"', '"invalid_request"'), ('""', '"<text>"')
_NOWHERE = {"node_id": ("1", "-1"), "host": ('"<host>"', '""')}
_BROKERS = '[{"broker_id": 1, "host": "<host>", "port": "<port>", "rack": null, "is_fenced": false}]'
DIFFERENCES = (
    Difference(
        "k24_add_partitions_to_txn",
        tuple(
            f'{place} add_partitions_to_txn v{version}.reply: expected "<no answer>" found '
            '{"throttle_time": 0, "error_code": "none", "results_by_transaction": []}'
            for place, version in ((8, 4), (10, 5))
        ),
        "AddPartitionsToTxn",
        "from version 4 on, without a transaction",
        "no reply",
        "an empty reply",
        "Apache Kafka replies when the last transaction has its result.",
    ),
    Difference(
        "finds_other_coordinators",
        (*_lines("2 find_coordinator v6.reply.coordinators[0]", error_code=_ERROR, error_message=_TEXT, **_NOWHERE),),
        "FindCoordinator",
        "key type 2, for a share group",
        "this broker",
        "INVALID_REQUEST",
        "Share groups do not exist here yet.",
    ),
    Difference(
        "k51_alter_user_scram_credentials",
        _lines(
            "17 alter_user_scram_credentials v0.reply.results[0]",
            error_code=('"unknown_server_error"', '"unacceptable_credential"'),
            error_message=("null", '"<text>"'),
        ),
        "AlterUserScramCredentials",
        "an empty salted password",
        "UNKNOWN_SERVER_ERROR",
        "UNACCEPTABLE_CREDENTIAL",
        "Apache Kafka fails with an internal error.",
    ),
    Difference(
        "the_only_broker_is_unregistered",
        (
            *_lines("0 unregister_broker v0.reply", error_code=_ERROR, error_message=_TEXT),
            *_lines("1 describe_cluster v2.reply", controller_id=("-1", "1"), brokers=("[]", _BROKERS)),
        ),
        "UnregisterBroker",
        "the id of the broker itself",
        "done: the cluster has no broker until it is started again",
        "INVALID_REQUEST",
        "No client could use the only broker any more.",
    ),
)


_VOTE = "voters of a quorum; the only voter here asks no one, and closes the connection"
BETWEEN_NODES = {
    27: "a coordinator of transactions, to leaders",
    52: _VOTE,
    53: _VOTE,
    54: _VOTE,
    56: "a leader, to the controller",
    58: "a broker that forwards a client's request, to the controller",
    59: "a broker that needs a snapshot of the metadata log, to the controller",
    62: "a broker at its start, to the controller",
    63: "a broker, to the controller",
    67: "a broker, to the controller",
    70: "a controller, to the active one; none here sends it",
    73: "a broker whose directory was replaced, to the controller",
    82: "a voter, to its leader; refused with UNSUPPORTED_VERSION",
}
"""API that only nodes send → its senders."""


class ConfigDifference(NamedTuple):
    """A setting that DescribeConfigs reports differently. ``fields`` are the fields that differ."""

    kind: str
    name: str
    fields: tuple[str, ...]
    kafka: str
    here: str
    why: str


SYNONYMS = ("synonyms",)
VALUE = ("config_source", "synonyms", "value")
DEFAULT_VALUE = ("synonyms", "value")
_NO_CLASS = "No such class exists here, so none is claimed to be loaded."
_ONE_PROCESS = "One process is broker and controller here, without a listener or voters of its own."
CONFIGS = (
    ConfigDifference("broker", "advertised.listeners", VALUE, "as it was set", "none, the default",
                     "It was set for Apache Kafka alone; clients get the address that they connected to."),
    ConfigDifference("broker", "listeners", DEFAULT_VALUE, "two, one for the controller", "one", _ONE_PROCESS),
    ConfigDifference("broker", "controller.listener.names", VALUE, "CONTROLLER", "none", _ONE_PROCESS),
    ConfigDifference("broker", "controller.quorum.voters", VALUE, "itself", "none", _ONE_PROCESS),
    ConfigDifference("broker", "listener.security.protocol.map", VALUE, "as it was set", "the default", _ONE_PROCESS),
    ConfigDifference("broker", "process.roles", VALUE, "broker,controller", "none", _ONE_PROCESS),
    ConfigDifference("broker", "node.id", SYNONYMS, "no default", "default 1",
                     "Apache Kafka does not start without one."),
    ConfigDifference("broker", "group.initial.rebalance.delay.ms", SYNONYMS, "default 3000", "default 0",
                     "Groups of a development broker should not wait."),
    ConfigDifference("broker", "offsets.topic.replication.factor", SYNONYMS, "default 3", "default 1",
                     "One broker cannot meet Kafka's default."),
    ConfigDifference("broker", "transaction.state.log.replication.factor", SYNONYMS, "default 3", "default 1",
                     "One broker cannot meet Kafka's default."),
    ConfigDifference("broker", "queued.max.request.bytes", DEFAULT_VALUE, "default -1: no limit", "33554432",
                     "One event loop serves all clients here (docs/limits.md)."),
    *(
        ConfigDifference("broker", name, DEFAULT_VALUE, "a class", "none", _NO_CLASS)
        for name in (
            "metric.reporters", "principal.builder.class", "remote.log.metadata.manager.class.name",
            "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.jwt.validator.class",
        )
    ),
)  # fmt: skip


def keys_out() -> set[int]:
    return {key for out in OUT for key in out.keys}


def announced() -> dict[int, tuple[int, int]]:
    """API → versions that Apache Kafka advertises."""
    newest = next(step for step in reversed(load("apis")["k18_api_versions"]) if step["reply"]["api_keys"])
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in newest["reply"]["api_keys"]}


def _between_nodes(key: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The versions of an API that only nodes send: those of Apache Kafka, and those here."""
    steps = load("clusters")["versions_between_nodes"]
    theirs = next((step["reply"][str(key)] for step in steps if str(key) in step["reply"]), None)
    files = [api for kind in ("client", "controller") for api in handler_files(kind) if api.key == key]
    return tuple(theirs) if theirs else None, (files[0].advertised_oldest, files[0].versions[1]) if files else None


# --- the page ---------------------------------------------------------------------------------------------------

_ACRONYMS = {"acls": "Acls", "id": "Id", "to": "To", "txn": "Txn"}


def api(key: int) -> str:
    """``OffsetCommit`` for 8."""
    return "".join(_ACRONYMS.get(part, part.capitalize()) for part in schemas.api_name(key).split("_"))


def _versions(versions: tuple[int, int] | None) -> str:
    if versions is None:
        return "–"
    return str(versions[0]) if versions[0] == versions[1] else f"{versions[0]}–{versions[1]}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables() -> dict[str, str]:
    """Name of a table → the table."""
    theirs = announced()
    ours = {api.key: (api.advertised_oldest, api.versions[1]) for api in handler_files("client")}
    return {
        "announced": _table(
            ("key", "API", "Apache Kafka 4.3", "here"),
            (
                (str(key), api(key), _versions(theirs.get(key)), _versions(ours.get(key)))
                for key in sorted(theirs.keys() | ours.keys())
            ),
        ),
        "between nodes": _table(
            ("key", "API", "from", "Apache Kafka 4.3", "here"),
            (
                (str(key), api(key), sender, *map(_versions, _between_nodes(key)))
                for key, sender in BETWEEN_NODES.items()
            ),
        ),
        "out": _table(
            ("what", "APIs", "what clients get", "why"),
            ((out.what, ", ".join(f"{api(key)} ({key})" for key in out.keys), out.client, out.why) for out in OUT),
        ),
        "differences": _table(
            ("API", "request", "Apache Kafka 4.3", "here", "why"),
            ((each.api, each.request, each.kafka, each.here, each.why) for each in DIFFERENCES),
        ),
        "configs": _table(
            ("setting", "Apache Kafka 4.3", "here", "why"),
            ((f"`{each.name}`", each.kafka, each.here, each.why) for each in CONFIGS),
        ),
        "features": _table(
            ("feature", "levels", "initial level"),
            ((name, _versions(levels), str(AT_FIRST.get(name, 0))) for name, levels in SUPPORTED.items()),
        ),
    }


def rewritten(page: str) -> str:
    """The page with new tables."""
    for name, table in tables().items():
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(marks[0])}\n.*?{re.escape(marks[1])}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"the page has no place for the table {name!r}")
        block = f"{marks[0]}\n{table}\n{marks[1]}"
        page = pattern.sub(lambda _, block=block: block, page)
    return page


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
