"""The sentences about a group, a partition and a finding in the terminal. Pure."""

from __future__ import annotations

from typing import Any

from odradek.core.counts import counted
from odradek.monitor.terminal.cells import partition_name
from odradek.monitor.web.formats import moment, number, rate, shown_name, span
from odradek.text.printable import printable

Json = dict[str, Any]


def facts(group: str, summary: Json | None) -> str:
    """Returns the lines on the whole group."""
    name = printable(shown_name(group))
    if summary is None:
        return f"Group {name}: no committed offset"
    return (
        f"Group {name}: {summary['status']}, {summary['state'] or 'state unknown'}"
        f"{' (' + summary['type'] + ')' if summary['type'] else ''}\n"
        f"Lag {number(summary['lag'])}, time lag {span(summary.get('time_lag_ms'))}, "
        f"read/s {rate(summary['records_per_second'])}, arriving/s {rate(summary['arrivals_per_second'])}, "
        f"clear in {span(summary['clear_ms'])}, lost {number(summary['lost'])}, "
        f"first expiry {moment(summary['expires_ms'])}"
    )


def partition_reason(row: Json) -> str:
    """Returns why a partition has its status."""
    text = f"{printable(partition_name(row))}: rule {row['rule']}: {row['reason']}."
    if row.get("time_lag_error_ms"):
        text += f" Time lag ± {span(row['time_lag_error_ms'])}."
    if row["lost"]:
        text += f" {counted(row['lost'], 'record')} deleted before the group read them."
    return text + (f" Stale: {printable(row['stale'])}." if row.get("stale") else "")


def finding_text(row: Json) -> str:
    """Returns a finding in full."""
    marks = [row["certainty"], *(["ongoing"] if row["is_ongoing"] else [])]
    marks += [] if row["history_complete"] else ["removed records may change it"]
    return f"{row['kind'].replace('_', ' ')} ({', '.join(marks)}): {printable(row['text'])}"
