"""The analysis as one self-contained HTML page: it includes plotly's script, all data and the style."""

from __future__ import annotations

import importlib
from collections import Counter
from datetime import datetime, timedelta
from html import escape as escape_html
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from odradek.core.counts import counted
from odradek.core.errors import StorageError
from odradek.core.extras import ExtraMissing, command_of
from odradek.history.analysis import Analysis
from odradek.history.findings import KINDS, format_duration
from odradek.history.records.columns import Row, rows_with_numbers
from odradek.text.output_file import output_file, problem_of
from odradek.text.printable import printable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {
    "rewind": "Rewinds: records read again",
    "jump": "Jumps: records skipped",
    "stall": "Stalls: commits without progress",
    "commit_gap": "Commit gaps: no commits while records waited",
    "rebalance_storm": "Rebalance storms",
    "expiring": "Offsets that expire soon",
    "never_commits": "Groups that never commit",
}
_TILES = {
    "rewind": "rewinds", "jump": "jumps", "stall": "stalls", "commit_gap": "commit gaps",
    "rebalance_storm": "rebalance storms", "expiring": "offsets expiring soon", "never_commits": "never commit",
}  # fmt: skip
MOST_GROUPS = 30
MOST_LINES = 8
MOST_FINDINGS = 200
_MOST_ROWS = 12
_MOST_EXPIRIES = 100

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; margin: 0; }
body { color: #1c2430; background: #f4f5f7; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 10px; }
h3 { font-size: 16px; margin: 0 0 4px; overflow-wrap: anywhere; }
.sub, .facts { color: #566173; margin: 0 0 14px; } .facts { font-size: 13px; margin: 0 0 6px; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0; }
.tile { background: #fff; border: 1px solid #dde1e7; border-radius: 8px; padding: 8px 16px 10px; min-width: 118px; }
.tile b { display: block; font-size: 24px; line-height: 1.25; } .tile.some b { color: #b3261e; }
.tile.none b { color: #8a93a2; } .tile span { color: #566173; font-size: 13px; }
.card { background: #fff; border: 1px solid #dde1e7; border-radius: 8px; padding: 16px 18px; margin: 0 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
.found { table-layout: fixed; } .found > tbody > tr > :first-child { width: 19%; }
.found > tbody > tr > :nth-child(3) { width: 172px; }
th { text-align: left; color: #566173; font-weight: 600; font-size: 12px; border-bottom: 1px solid #dde1e7; }
th, td { padding: 5px 12px 5px 0; vertical-align: top; } td { border-bottom: 1px solid #eef0f3; }
td.name { overflow-wrap: anywhere; min-width: 110px; } td.when, td.n { white-space: nowrap; }
th.n, td.n { text-align: right; } tr:last-child > td { border-bottom: 0; }
.tag { font-size: 12px; border-radius: 9px; padding: 1px 8px; white-space: nowrap; }
.tag { background: #eef0f3; color: #444e5e; }
.tag.now { background: #fbe3e1; color: #8c1d18; }
details { margin-top: 3px; } summary { cursor: pointer; color: #3355a5; font-size: 13px; }
details table { font-size: 12.5px; margin: 4px 0; } ul.notes { margin: 0; padding-left: 20px; color: #444e5e; }
code { font: 12.5px ui-monospace, Menlo, Consolas, monospace; }
"""


class PlotlyMissing(ExtraMissing):
    """The report's plots need plotly, which is not installed; the message names the extra."""

    def __init__(self) -> None:
        super().__init__(f"a report needs plotly, which is not installed: {command_of('report')}")


def check_plotly() -> None:
    """Raises PlotlyMissing if plotly is not installed."""
    try:
        importlib.import_module("plotly")
    except ImportError as error:
        raise PlotlyMissing from error


def check_page(path: Path) -> None:
    """Checks that the page can be written, before the analysis. Raises PlotlyMissing, StorageError."""
    check_plotly()
    if problem := problem_of(path):
        raise StorageError(f"{path}{'' if problem.startswith('is ') else ':'} {problem}")


def write_page(path: Path, text: str) -> None:
    """Writes the page: until it is complete, readers see the old page (``output_file``). Raises StorageError."""
    try:
        with output_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error


def render(analysis: Analysis, source: str) -> str:
    """Returns the page. ``source`` names the cluster. Raises PlotlyMissing."""
    check_plotly()
    from plotly.offline import get_plotlyjs

    findings = rows_with_numbers(analysis.findings)
    by_kind = Counter(row["kind"] for row in findings)
    parts = [
        f"<h1>Offset history of {escape(source)}</h1>",
        f'<p class="sub">{time_text(analysis.since_us)} to {time_text(analysis.now_us)} UTC · '
        f"{len(analysis.groups):,} groups · {analysis.commit_count:,} commits in {analysis.record_count:,} records "
        "of <code>__consumer_offsets</code></p>",
        '<div class="tiles">' + "".join(_tile(kind, by_kind[kind]) for kind in KINDS) + "</div>",
        _notes(analysis),
    ]
    parts += [_kind_section(kind, [row for row in findings if row["kind"] == kind]) for kind in KINDS if by_kind[kind]]
    if not findings:
        parts.append(
            '<div class="card">No findings: no offset was moved or expires soon, and no group stopped reading.</div>'
        )
    parts += [_groups(analysis, findings), _expiry(analysis), _coverage(analysis)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Offset history of {escape(source)}</title><style>{_STYLE}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def escape(text: str) -> str:
    """Makes text from the cluster safe for the page: escapes tags, controls and marks that change text direction."""
    return escape_html(printable(text))


def _tile(kind: str, count: int) -> str:
    return f'<div class="tile {"some" if count else "none"}"><b>{count:,}</b><span>{_TILES[kind]}</span></div>'


def time_text(us: int | None) -> str:
    """Formats a time as ``2026-01-31 12:00:00``, or as a number if it is beyond Python's calendar."""
    if us is None:
        return "–"
    try:
        return (datetime(1970, 1, 1) + timedelta(microseconds=us)).isoformat(" ", "seconds")
    except OverflowError:
        return f"{us} µs"


def plot_time(us: int) -> str | None:
    """Returns a time for the plots, or None beyond Python's calendar: Arrow writes such a time as another year."""
    text = time_text(us)
    return None if text.endswith("µs") else text


def _notes(analysis: Analysis) -> str:
    notes = [
        "Records that are read again because a reader died before it committed leave no trace in commits: this page "
        "cannot show them.",
        "Lag in the past comes from the logs' time indexes: it is as accurate as the records' timestamps.",
    ]
    if analysis.incomplete_below:
        notes.append(
            f"{incompleteness(analysis)} Rewinds, jumps and stalls among these are not visible. Findings from the "
            "time of the removed records have the tag <i>history incomplete</i>."
        )
    if analysis.unreadable.count:
        notes.append(f"{escape(str(analysis.unreadable))}. The table unknown has their bytes.")
    if not analysis.retention_is_known:
        notes.append(
            "The brokers did not report offsets.retention.minutes: expiry is computed with Kafka's default of 7 days."
        )
    if analysis.gone_topics:
        names = ", ".join(escape(name) for name in analysis.gone_topics[:10])
        more = f" and {len(analysis.gone_topics) - 10} more" if len(analysis.gone_topics) > 10 else ""
        notes.append(f"Topics that have commits but no longer exist, and so have no lag here: {names}{more}.")
    return '<ul class="notes">' + "".join(f"<li>{note}</li>" for note in notes) + "</ul>"


def incompleteness(analysis: Analysis) -> str:
    """Returns a sentence that says how much of the offsets topic was removed."""
    rows, count = analysis.coverage, len(analysis.incomplete_below)
    sums = {name: pc.sum(rows[name]).as_py() or 0 for name in ("end_offset", "removed_records", "removed_unknown")}
    removed = sums["removed_records"] + sums["removed_unknown"]
    return (
        f"{removed:,} of the {sums['end_offset']:,} offsets of the offsets topic have no record any more, in {count} "
        f"partition{'s' * (count != 1)}: compaction removed older records."
    )


# --- findings ---------------------------------------------------------------------------------------------------------


def _kind_section(kind: str, rows: list[Row]) -> str:
    rows = sorted(rows, key=lambda row: (row["certainty"] != "certain", -(row["records"] or 0), row["group"]))
    body = "".join(_finding(row) for row in rows[:MOST_FINDINGS])
    left = len(rows) - MOST_FINDINGS
    more = f'<p class="facts">{left:,} more are in the table findings.</p>' if left > 0 else ""
    head = "<tr><th>Group</th><th>What</th><th>When (UTC)</th></tr>"
    return (
        f'<h2>{TITLES[kind]}</h2><div class="card"><table class="found"><tbody>{head}{body}</tbody></table>{more}</div>'
    )


def _finding(row: Row) -> str:
    tags = []
    if row["is_ongoing"] and row["kind"] != "expiring":
        tags.append('<span class="tag now">ongoing</span>')
    if row["certainty"] != "certain":
        tags.append(f'<span class="tag">{row["certainty"]}</span>')
    if not row["history_complete"]:
        tags.append('<span class="tag">history incomplete</span>')
    when = f"{time_text(row['from_timestamp'])}<br>to {time_text(row['to_timestamp'])}"
    return (
        f'<tr><td class="name">{escape(row["group"])}</td>'
        f"<td>{escape(row['text'])} {' '.join(tags)}{_proof(row)}</td>"
        f'<td class="when">{when}</td></tr>'
    )


def _proof(row: Row) -> str:
    shown = row["proof"]
    if len(shown) > _MOST_ROWS:
        shown = shown[: _MOST_ROWS // 2] + shown[-_MOST_ROWS // 2 :]
    lines = "".join(
        f'<tr><td>{one["record_partition"]}</td><td class="n">{one["record_offset"]:,}</td>'
        f'<td class="when">{time_text(one["record_timestamp"])}</td><td>{_record(one)}</td></tr>'
        for one in shown
    )
    count = row["proof_count"]
    summary = f"{count:,} record{'s' * (count != 1)} prove{'s' * (count == 1)} it"
    summary += f", {len(shown)} shown" if len(shown) < count else ""
    head = '<tr><th>Partition</th><th class="n">Offset</th><th>Written</th><th>Record</th></tr>'
    return f"<details><summary>{summary}</summary><table>{head}{lines}</table></details>"


def _record(one: Row) -> str:
    if one["kind"] == "offset_commit":
        return "offset deleted" if one["is_tombstone"] else f"commit of {one['committed_offset']:,}"
    generation = "" if one["generation"] is None else f", generation {one['generation']}"
    return f"{escape(one['kind'] or '')}{generation}, {counted(one['member_count'] or 0, 'member')}"


# --- groups -----------------------------------------------------------------------------------------------------------


def _groups(analysis: Analysis, findings: list[Row]) -> str:
    """Returns a card with plots for each of the first ``MOST_GROUPS`` groups, by number of findings and then by lag."""
    lag = analysis.lag
    of_group: dict[str, list[Row]] = {}
    for row in findings:
        of_group.setdefault(row["group"], []).append(row)
    newest = lag.group_by("group").aggregate([("lag", "max")]).to_pylist() if lag.num_rows else []
    most = {row["group"]: row["lag_max"] or 0 for row in newest}
    order = sorted(most, key=lambda name: (-len(of_group.get(name, ())), -most[name], name))
    if not order:
        return ""
    shown = order[:MOST_GROUPS]
    left = len(order) - len(shown)
    more = f'<p class="facts">{left:,} more groups, with fewer findings or less lag, are in the table lag.</p>' * (
        left > 0
    )
    cards = [_group(lag.filter(pc.equal(lag["group"], name)), name, of_group.get(name, [])) for name in shown]
    return f"<h2>Groups over time</h2>{''.join(cards)}{more}"


def _group(lag: pa.Table, name: str, findings: list[Row]) -> str:
    counts = Counter(row["kind"] for row in findings)
    summary = " · ".join(_count_text(count, kind) for kind, count in counts.items()) or "no findings"
    return f'<div class="card"><h3>{escape(name)}</h3><p class="facts">{summary}</p>{_figure(lag, findings)}</div>'


def _count_text(count: int, kind: str) -> str:
    if kind == "never_commits":
        return "never commits"
    return (
        f"{count} {_TILES[kind]}" if count != 1 else "1 " + _TILES[kind].replace("offsets", "offset").removesuffix("s")
    )


def _lines(lag: pa.Table) -> list[tuple[str, pa.Table]]:
    """Returns the lines of a plot: one per partition, or, with many partitions, one per topic.

    A topic's line has the sum of lags and rates, and the maximum time lag.
    """
    keys = lag.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    keys.sort(key=lambda key: (key["topic"], key["partition"]))
    if len(keys) <= MOST_LINES:
        return [
            (
                f"{key['topic']}-{key['partition']}",
                lag.filter(pc.and_(pc.equal(lag["topic"], key["topic"]), pc.equal(lag["partition"], key["partition"]))),
            )
            for key in keys
        ]
    aggregated = lag.group_by(["topic", "timestamp"]).aggregate(
        [("lag", "sum"), ("time_lag_ms", "max"), ("records_per_second", "sum")]
    )
    aggregated = aggregated.rename_columns(["topic", "timestamp", "lag", "time_lag_ms", "records_per_second"])
    topics = sorted(set(aggregated["topic"].to_pylist()))
    return [
        (f"{topic} (all partitions)", aggregated.filter(pc.equal(aggregated["topic"], topic)).sort_by("timestamp"))
        for topic in topics
    ]


_COLOURS = ("#3355a5", "#c2571a", "#2e7d4f", "#8b3fa0", "#b08900", "#0f7f8c", "#a33a52", "#5b6470")
_BANDS = {
    "rewind": "#3355a5", "jump": "#b3261e", "stall": "#b08900", "commit_gap": "#8b3fa0", "rebalance_storm": "#c2571a"
}  # fmt: skip


def _figure(lag: pa.Table, findings: list[dict[str, object]]) -> str:
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    size, unit = _time_unit(lag)
    titles = ("Lag, records", f"Time lag, {unit}", "Read, records/s")
    figure: Figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.075, subplot_titles=titles)
    for number, (name, rows) in enumerate(_lines(lag)):
        times = [*map(plot_time, rows["timestamp"].cast(pa.int64()).to_pylist())]
        ages = [None if age is None else age / size for age in rows["time_lag_ms"].to_pylist()]
        columns = (rows["lag"].to_pylist(), ages, rows["records_per_second"].to_pylist())
        for at, values in enumerate(columns, 1):
            line = Scatter(
                x=times,
                y=values,
                name=escape(name),
                legendgroup=name,
                showlegend=at == 1,
                mode="lines",
                line={"width": 1.6, "color": _COLOURS[number % len(_COLOURS)], "shape": "hv" if at < 3 else "vh"},
                hovertemplate="%{y:,.4~f}",
            )
            figure.add_trace(line, row=at, col=1)
    _mark_findings(figure, findings)
    figure.update_layout(
        template="plotly_white",
        height=520,
        margin={"l": 60, "r": 20, "t": 34, "b": 30},
        hovermode="x unified",
        legend={"orientation": "h", "yanchor": "top", "y": -0.07, "x": 0},
        font={"family": "system-ui, sans-serif", "size": 12},
    )
    figure.update_annotations(font_size=12, x=0, xanchor="left", selector={"xref": "paper"})
    figure.update_yaxes(rangemode="tozero", exponentformat="none", separatethousands=True)
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(include_plotlyjs=False, full_html=False, config=config))


def _time_unit(lag: pa.Table) -> tuple[int, str]:
    """Returns the milliseconds and the name of the unit for time lags."""
    most = pc.max(lag["time_lag_ms"]).as_py() or 0
    for size, unit in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if most >= 2 * size:
            return size, unit
    return 1_000, "seconds"


def _mark_findings(figure: Figure, findings: list[Row]) -> None:
    """Marks the first findings in the plots: rewinds and jumps as lines, other kinds in ``_BANDS`` as bands."""
    named: set[tuple[str, int]] = set()
    for row in findings[:60]:
        colour = _BANDS.get(row["kind"])
        begin, end = row["from_timestamp"], row["to_timestamp"]
        if colour is None or begin is None or end is None or None in (plot_time(begin), plot_time(end)):
            continue
        label = row["kind"].replace("_", " ")
        if row["kind"] in ("rewind", "jump"):
            figure.add_vline(x=time_text(end), line={"color": colour, "width": 1.4, "dash": "dot"}, row="all", col=1)
        else:
            figure.add_vrect(
                x0=time_text(begin), x1=time_text(end), fillcolor=colour, opacity=0.13, line_width=0, row="all"
            )
        if (label, end) not in named:
            at = time_text(end if row["kind"] in ("rewind", "jump") else begin)
            figure.add_annotation(
                x=at, y=1, yref="y domain", text=label, showarrow=False, xanchor="left", yanchor="top", xshift=3,
                yshift=-13 * (len(named) % 4),
                font={"size": 11, "color": colour}, row=1, col=1,
            )  # fmt: skip
            named.add((label, end))


# --- expiry -----------------------------------------------------------------------------------------------------------


def _expiry(analysis: Analysis) -> str:
    table = analysis.expiry
    if not table.num_rows:
        return ""
    expiring = table.filter(pc.is_valid(table["expires_at"]))
    unexpired = table.num_rows - expiring.num_rows
    retention = format_duration(analysis.retention_ms * 1000)
    summary = f"offsets.retention.minutes is {analysis.retention_ms // 60_000:,} ({retention}). "
    summary += f"{unexpired:,} of {table.num_rows:,} committed offsets do not expire: members read their topics."
    if not expiring.num_rows:
        return f'<h2>Expiry of committed offsets</h2><div class="card"><p class="facts">{summary}</p></div>'
    reasons = {
        "empty": "the time the group became empty",
        "commit": "the commit: no member reads the topic",
        "own": "the commit has its own expiry",
    }
    rows = "".join(
        f'<tr><td class="name">{escape(row["group"])}</td>'
        f'<td class="name">{escape(row["topic"])}-{row["partition"]}</td>'
        f'<td class="n">{row["committed_offset"]:,}</td><td class="when">{time_text(row["expires_at"])}</td>'
        f"<td>{reasons[row['counted_from']]}</td></tr>"
        for row in rows_with_numbers(expiring.slice(0, _MOST_EXPIRIES))
    )
    left = expiring.num_rows - _MOST_EXPIRIES
    more = f'<p class="facts">{left:,} more are in the table expiry.</p>' if left > 0 else ""
    head = (
        '<tr><th>Group</th><th>Partition</th><th class="n">Offset</th><th>Deleted at the first check after (UTC)</th>'
        "<th>Retention counts from</th></tr>"
    )
    return (
        f'<h2>Expiry of committed offsets</h2><div class="card"><p class="facts">{summary}</p>'
        f"<table>{head}{rows}</table>{more}</div>"
    )


# --- coverage ---------------------------------------------------------------------------------------------------------

_COUNTS = {
    "records": ("records", "read, of all groups"),
    "control_records": ("control records", "markers that end transactions: they are no history"),
    "rolled_back": ("rolled back", "records of aborted transactions: these were never committed"),
    "removed_records": ("removed, records", "gaps in existing batches: compaction removed these records"),
    "removed_unknown": (
        "removed, unknown",
        "offsets without a batch: their records, markers or aborted records were removed, and the log does not show "
        "which",
    ),
}


def _coverage(analysis: Analysis) -> str:
    """Returns the section with the counts of all offsets and the partitions with removed records."""
    table = analysis.coverage
    if not table.num_rows:
        return ""
    whole = pc.sum(table["end_offset"]).as_py()
    counts = {name: pc.sum(table[name]).as_py() for name in _COUNTS}
    sums = "".join(
        f'<tr><td class="name">{name}</td><td class="n">{counts[key]:,}</td>'
        f'<td class="n">{counts[key] / whole:.1%}</td><td>{meaning}</td></tr>'
        for key, (name, meaning) in _COUNTS.items()
    )
    head = '<tr><th>Offsets</th><th class="n">How many</th><th class="n">Share</th><th>What they are</th></tr>'
    text = (
        f'<h2>Coverage of the offsets topic</h2><div class="card"><p class="facts">{whole:,} offsets in '
        f"{table.num_rows:,} partitions of <code>__consumer_offsets</code> that were read, from offset 0 to their ends."
        f"</p><table>{head}{sums}</table>"
    )
    holes = table.filter(pc.greater(table["incomplete_below"], 0)).sort_by("record_partition").to_pylist()
    if holes:
        names = "".join(f'<th class="n">{name}</th>' for name, _ in _COUNTS.values())
        rows = "".join(
            f'<tr><td>{row["record_partition"]}</td><td class="n">{row["log_start_offset"]:,}</td>'
            + "".join(f'<td class="n">{row[name]:,}</td>' for name in ("end_offset", *_COUNTS, "incomplete_below"))
            + "</tr>"
            for row in holes
        )
        text += (
            f"<details><summary>{len(holes):,} partition{'s' * (len(holes) != 1)} with removed records"
            '</summary><table><tr><th>Partition</th><th class="n">Log start</th><th class="n">End</th>'
            f'{names}<th class="n">Complete from offset</th></tr>{rows}</table></details>'
        )
    return text + "</div>"
