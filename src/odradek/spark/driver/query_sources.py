"""The options of a running query's sources, from the query's plan in Spark's Java process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JError

from odradek.core.errors import ConfigError
from odradek.spark.options import ReadOptions, client_config, parse_options

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

# For the calls of Spark's listeners, because other listeners and the end of Spark wait for them.
LISTENER_TIMEOUT_MS = 10_000


class SourceSettings(NamedTuple):
    """How to reach the cluster of a source. ``own_group``: the group to which the source commits itself, or empty."""

    options: ReadOptions
    own_group: str = ""


def execution_of(spark: SparkSession, query: str) -> JavaObject | None:
    """Returns Java's StreamExecution of a query; None if the query does not run. Spark runs a query in a copy of its
    session, so the session's own list of queries does not have it.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))


def has_state(spark: SparkSession, execution: JavaObject) -> bool:
    """Returns whether a query keeps state between micro-batches, as joins and aggregations do. True if unknown."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    try:
        place = jvm.org.apache.hadoop.fs.Path(execution.checkpointFile("state"))
        return bool(place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).exists(place))
    except Py4JError:  # another release of Spark may have another name for this method
        return True


def cluster_settings(execution: JavaObject, timeout_ms: int) -> dict[int, SourceSettings | None]:
    """Returns how to reach the clusters of a query's sources, by their numbers in progress reports.

    Knows Spark's own Kafka source, too. None stands for a source of another kind. ``execution`` is Java's
    StreamExecution. ``timeout_ms``: the longest time of the client's calls. Raises Py4JError, ConfigError.
    """
    return {
        number: _settings_of(relation, timeout_ms)
        for number, relation in enumerate(_relations(execution.analyzedPlan()))
    }


def given_settings(options: Mapping[str, str], timeout_ms: int) -> SourceSettings:
    """Returns how to reach a cluster by ``kafka.*`` options. Raises ConfigError."""
    if others := sorted(name for name in options if not name.lower().startswith("kafka.")):
        raise ConfigError(f"options={{{others[0]!r}: …}}: expected options of the client, which begin with kafka.")
    return _settings(options, timeout_ms, strict=True)


def _settings(options: Mapping[str, str], timeout_ms: int, *, strict: bool) -> SourceSettings:
    """Returns the settings of the ``kafka.*`` options among others. Raises ConfigError."""
    given = {name.lower(): value for name, value in options.items()}
    kafka = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    return SourceSettings(_with_limit(ReadOptions(client_config(kafka, strict=strict)), timeout_ms))


def _settings_of(relation: JavaObject, timeout_ms: int) -> SourceSettings | None:
    if relation.getClass().getSimpleName().startswith("StreamingRelationV2") and relation.sourceName() == "kafka":
        # Not strict: Java's client has settings that a commit does not need.
        return _settings(dict(relation.extraOptions().asCaseSensitiveMap()), timeout_ms, strict=False)
    options = _options_of(relation)
    if options is None:
        return None
    commits = options.commit_offsets or options.offsets_in_transaction or options.offsets_by_table
    return SourceSettings(_with_limit(options, timeout_ms), (options.group_id or "") if commits else "")


def source_options(execution: JavaObject, timeout_ms: int | None = None) -> list[ReadOptions | None]:
    """Returns the options of a query's sources, in the order of the sources in progress reports.

    None stands for a foreign source, or for one with invalid options.

    ``execution`` is Java's StreamExecution. ``timeout_ms``: the longest time of the client's calls. Raises Py4JError.
    """
    found = [_options_of(relation) for relation in _relations(execution.analyzedPlan())]
    return found if timeout_ms is None else [None if one is None else _with_limit(one, timeout_ms) for one in found]


def streaming_leaves(analyzed: JavaObject) -> Iterator[JavaObject]:
    """Yields the leaves of a plan that are streams, each time that the query reads one."""
    leaves = analyzed.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.isStreaming():
            yield leaf


def _relations(analyzed: JavaObject) -> Iterator[JavaObject]:
    """Yields the streaming leaves of a plan, equal leaves once, in the order of the sources in progress reports."""
    seen: list[JavaObject] = []
    for leaf in streaming_leaves(analyzed):
        if not any(leaf.equals(other) for other in seen):
            seen.append(leaf)
            yield leaf


def _options_of(relation: JavaObject) -> ReadOptions | None:
    """Returns the options of a stream of ours; None for any other relation."""
    if not relation.getClass().getSimpleName().startswith("StreamingRelationV2"):
        return None
    name = relation.sourceName()
    if name not in {"odradek", "odradek-offsets"}:
        return None
    given = dict(relation.extraOptions().asCaseSensitiveMap())
    try:
        return parse_options(given, streaming=True) if name == "odradek" else _history_options(given)
    except ConfigError:  # the query itself reports it
        return None


def _history_options(given: dict[str, str]) -> ReadOptions:
    """Parses the options of ``odradek-offsets``. Raises ConfigError."""
    from odradek.spark.offsets_source import parse_history_options

    return parse_history_options(given, streaming=True).read


def _with_limit(options: ReadOptions, timeout_ms: int) -> ReadOptions:
    client = dataclasses.replace(
        options.client,
        default_api_timeout_ms=min(options.client.default_api_timeout_ms, timeout_ms),
        bootstrap_timeout_ms=min(options.client.bootstrap_timeout_ms, timeout_ms),
    )
    return dataclasses.replace(options, client=client)
