"""The options of a running query's sources, from the query's plan in Spark's Java process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from odradek.core.errors import ConfigError
from odradek.spark.options import ReadOptions, parse_options

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

# For the calls of Spark's listeners, because other listeners and the end of Spark wait for them.
LISTENER_TIMEOUT_MS = 10_000


def source_options(execution: JavaObject, timeout_ms: int | None = None) -> list[ReadOptions | None]:
    """Returns the options of a query's sources, in the order of the sources in progress reports.

    None stands for a foreign source, or for one with invalid options.

    ``execution`` is Java's StreamExecution. ``timeout_ms``: the longest time of the client's calls. Raises Py4JError.
    """
    found = [_options_of(relation) for relation in _relations(execution.analyzedPlan())]
    return found if timeout_ms is None else [None if one is None else _with_limit(one, timeout_ms) for one in found]


def _relations(analyzed: JavaObject) -> Iterator[JavaObject]:
    """Yields the streaming leaves of a plan, equal leaves once, in the order of the sources in progress reports."""
    leaves = analyzed.collectLeaves()
    seen: list[JavaObject] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.isStreaming() and not any(leaf.equals(other) for other in seen):
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
