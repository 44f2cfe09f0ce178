"""Analysis of the offsets topic: findings about groups with their proofs, lag over time, and expiry of offsets.

The analysis uses Arrow and numpy, not Spark. It compares each commit with the previous one of the same group and
partition, in log order. Commits are read in log order and take about sixty bytes each in flat columns. One stable sort
arranges ten million commits within seconds. Spark needs longer to start, shuffle and spill. Groups are independent of
each other, so on a Spark cluster the same functions run on the rows of each group separately
(``odradek.pipelines.history.frames``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    import pyarrow as pa

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig, as_config
from odradek.history.batch_verdicts import EndsOf, verdicts_of
from odradek.history.coverage import Coverage
from odradek.history.findings import Evidence, Finding, FindingRules, as_table, gather
from odradek.history.group_findings import expiring, expiry_table, never_commit, storms
from odradek.history.log_ends import Logs, TimesOf, ends_at, look_up, record_times
from odradek.history.records.journal import Journal
from odradek.history.records.read import stream_offset_history
from odradek.history.records.unreadable import UnreadableRecords
from odradek.history.rewinds import moves
from odradek.history.series import lag_table
from odradek.history.stalls import pauses
from odradek.history.verdict_rules import VerdictRules

POINTS = 120
RESULTS = ("findings", "lag", "expiry", "coverage", "verdicts")
"""The tables of an ``Analysis``."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of an analysis. Times are microseconds since 1970.

    The schemas of the five tables are ``findings.SCHEMA``, ``series.SCHEMA``, ``group_findings.EXPIRY_SCHEMA``,
    ``coverage.SCHEMA`` and ``verdicts.SCHEMA``. For each partition of the offsets topic with removed records,
    ``incomplete_below`` has an offset: no record at or above it was removed. ``gone_topics``: topics that have commits
    but no longer exist. ``unreadable``: the records that could not be decoded, which all other results leave out.
    """

    findings: pa.Table
    lag: pa.Table
    expiry: pa.Table
    coverage: pa.Table
    verdicts: pa.Table
    groups: tuple[str, ...]
    record_count: int
    commit_count: int
    since_us: int
    now_us: int
    retention_ms: int
    retention_is_known: bool
    incomplete_below: dict[int, int]
    gone_topics: tuple[str, ...]
    unreadable: UnreadableRecords


def find_all(evidence: Evidence) -> list[Finding]:
    """Returns the findings of all kinds."""
    return [
        *moves(evidence),
        *pauses(evidence),
        *storms(evidence),
        *expiring(evidence),
        *never_commit(evidence),
    ]


def analyse(
    journal: Journal, logs: Logs, times_of: TimesOf = lambda records: {}, rules: FindingRules | None = None,
    *, since_us: int | None = None, verdict_rules: VerdictRules | None = None, ends_of: EndsOf = lambda wanted: {},
    verdict_logs: Logs | None = None,
) -> Analysis:  # fmt: skip
    """Analyses a journal. No batch can be added to the journal afterwards.

    ``verdict_logs``: the log ends for the verdicts, if they are others than ``logs``. With ``since_us`` (microseconds
    since 1970), findings that ended before that time are left out.
    """
    groups, record_count = tuple(sorted(journal.groups)), journal.record_count
    evidence = gather(journal, logs, times_of, rules or FindingRules())
    commits = evidence.commits
    findings = find_all(evidence)
    if since_us is not None:
        findings = [one for one in findings if one.to_us is None or one.to_us >= since_us or one.is_ongoing]
    topics = {key.topic for key in commits.keys}
    return Analysis(
        as_table(findings),
        lag_table(evidence),
        expiry_table(evidence),
        journal.coverage.table(),
        verdicts_of(evidence._replace(logs=verdict_logs or logs), verdict_rules or VerdictRules(), ends_of),
        groups,
        record_count,
        len(commits) - int(commits.is_tombstone.sum()),
        int(logs.moments[0]) if len(logs.moments) else logs.now_us,
        logs.now_us,
        logs.retention_ms,
        logs.retention_is_known,
        dict(evidence.incomplete_below),
        tuple(sorted(topics - {tp.topic for tp in logs.by_partition})),
        journal.unreadable,
    )


def analyse_offset_history(
    config: ClientConfig | str,
    *,
    group: str | None = None,
    since_us: int | None = None,
    now_us: int | None = None,
    rules: FindingRules | None = None,
    verdict_rules: VerdictRules | None = None,
    points: int = POINTS,
    **settings: object,
) -> Analysis:
    """Reads and analyses the offsets topic of a cluster, or only the records of ``group``.

    ``since_us``: the start of the analysed time, in microseconds since 1970. Earlier records are read too, because they
    hold the committed offsets at that time. ``now_us``: the end of the analysed time; by default the later of the local
    clock's time and the newest record's timestamp. Raises BrokerUnreachable, RequestTimedOut.
    """
    config = as_config(config, **settings)
    journal = Journal()
    for batch in stream_offset_history(config, group=group, coverage=journal.coverage):
        journal.add(batch)
    return analyse_journal(
        config, journal, since_us=since_us, now_us=now_us, rules=rules, verdict_rules=verdict_rules, points=points
    )


def analyse_journal(
    config: ClientConfig,
    journal: Journal,
    *,
    since_us: int | None = None,
    now_us: int | None = None,
    rules: FindingRules | None = None,
    verdict_rules: VerdictRules | None = None,
    points: int = POINTS,
    advance: Callable[[int], None] = lambda done: None,
) -> Analysis:
    """Looks up the logs of the committed partitions in the cluster and analyses a complete journal."""
    now_us = max(int(time.time() * 1e6), journal.latest_us) if now_us is None else now_us
    moments = journal.moments(since_us, now_us, points)
    with Admin(config) as admin:
        logs = look_up(admin, journal.partitions(), moments, now_us, advance=advance)
    return analyse(
        journal, logs, partial(record_times, config), rules,
        since_us=since_us, verdict_rules=verdict_rules, ends_of=partial(ends_at, config),
    )  # fmt: skip


def analyse_table(
    records: pa.Table, logs: Logs, times_of: TimesOf, rules: FindingRules, coverage: Coverage,
    *, since_us: int | None = None, verdict_rules: VerdictRules | None = None, ends_of: EndsOf = lambda wanted: {},
) -> Analysis:  # fmt: skip
    """Like ``analyse``, for decoded records (``journal.COLUMNS``): all records of some groups, in any order.

    The caller gives ``coverage``, because the records of some groups are not enough to compute it.
    """
    journal = Journal(coverage=coverage)
    for batch in records.sort_by([("record_partition", "ascending"), ("record_offset", "ascending")]).to_batches():
        journal.add(batch)
    return analyse(journal, logs, times_of, rules, since_us=since_us, verdict_rules=verdict_rules, ends_of=ends_of)
