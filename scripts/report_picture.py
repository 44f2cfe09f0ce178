"""``python scripts/report_picture.py`` draws docs/history-report.svg: what the history report shows of one group.

A consumer group reads a topic on a broker whose clock the script moves, minute by minute for four hours. The group
stalls. A tool moves the group back, and later forward. The picture shows the findings of ``analyse_offset_history`` and
the same lines as the report, which is a page of HTML with plotly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from html import escape
from math import pi, sin
from pathlib import Path
from typing import Any, NamedTuple

import odradek
from odradek import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from odradek.client import NewTopic
from odradek.history.analysis import Analysis, analyse_offset_history

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "history-report.svg"
TOPIC, GROUP, PARTITIONS = "orders", "billing", 2
MINUTES, STALL, REWIND, JUMP = 240, range(70, 95), 140, 200
"""The length of the run; the minutes in which the group makes no progress; the minutes of its move back and forward."""
SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 1_800_000,
}

# --- the run -----------------------------------------------------------------------------------------------------


class ExampleGroup:
    """A producer, a consumer and a tool on one broker."""

    def __init__(self, broker: odradek.Broker) -> None:
        self.broker, self.servers = broker, broker.bootstrap_servers
        self.partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self.admin, self.producer = Admin(self.servers), Producer(self.servers)
        # The broker sets the timestamps, since the producer does not know the moved clock.
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, configs={"message.timestamp.type": "LogAppendTime"})])
        self.consumer = self.start()

    def start(self) -> Consumer:
        """Starts a consumer of the group and returns it when it has its partitions."""
        one = Consumer(self.servers, group_id=GROUP, max_poll_records=2_000, **SETTINGS)
        one.subscribe([TOPIC])
        while not one.assignment():
            one.poll(0.1)
        return one

    def play(self) -> None:
        for minute in range(MINUTES):
            self.publish(minute)
            self.broker.clock.advance(minutes=1)
            if minute in (REWIND, JUMP):
                self.move(minute)
            if minute not in STALL:
                self.read(400 if STALL.stop <= minute < STALL.stop + 40 else 1_000)
            self.consumer.commit()
        self.consumer.close()
        self.producer.close()
        self.admin.close()

    def publish(self, minute: int) -> None:
        for tp in self.partitions:
            for _ in range(round(120 + 60 * sin(2 * pi * minute / 60) + 40 * tp.partition)):
                self.producer.send(TOPIC, b"an order", partition=tp.partition)
        self.producer.flush(30)

    def read(self, count: int) -> None:
        """Polls until the group has read ``count`` records, or all. The last poll may return more than are missing."""
        left = min(count, sum(self.lag().values()))
        while left > 0:
            left -= self.consumer.poll(5).num_rows

    def lag(self) -> dict[TopicPartition, int]:
        ends = self.consumer.end_offsets(self.partitions)
        return {tp: ends[tp] - self.consumer.position(tp) for tp in self.partitions}

    def move(self, minute: int) -> None:
        """Resets the group while it has no members: back by 6,000 records in each partition, or forward to the end."""
        self.consumer.close()
        committed = self.admin.list_group_offsets(GROUP)
        ends = {tp: end.offset for tp, end in self.admin.list_offsets(dict.fromkeys(self.partitions, -1)).items()}
        moved = {tp: max(row.offset - 6_000, 0) if minute == REWIND else ends[tp] for tp, row in committed.items()}
        self.admin.alter_group_offsets(GROUP, {tp: OffsetAndMetadata(offset) for tp, offset in moved.items()})
        self.consumer = self.start()


# --- the picture -------------------------------------------------------------------------------------------------

_WIDTH, _LEFT, _RIGHT = 920, 66, 16
_COLOURS = ("#3355a5", "#c2571a")
_KINDS = {"rewind": "#3355a5", "jump": "#b3261e", "stall": "#b08900"}
_GREY, _GRID, _TEXT = "#566173", "#e3e6eb", "#1c2430"
_PANEL, _TOP, _ROW = 150, 196, 24


class Line(NamedTuple):
    """One partition in one panel."""

    name: str
    times: list[datetime]
    values: list[float]


def lines_of(analysis: Analysis, column: str, size: float = 1) -> list[Line]:
    rows = [row for row in analysis.lag.to_pylist() if row["group"] == GROUP and row[column] is not None]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(f"{row['topic']}-{row['partition']}", []).append(row)
    return [
        Line(name, [row["timestamp"] for row in found], [row[column] / size for row in found])
        for name, found in sorted(by_name.items())
    ]


def draw(analysis: Analysis) -> str:
    findings = [row for row in analysis.findings.to_pylist() if row["kind"] in _KINDS]
    panels = [
        ("Lag, records", lines_of(analysis, "lag")),
        ("Time lag, minutes", lines_of(analysis, "time_lag_ms", 6e4)),
    ]
    times = [at for _, lines in panels for line in lines for at in line.times]
    first, last = min(times), max(times)

    def x(at: datetime) -> float:
        return _LEFT + (at - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    parts = _head(analysis, findings)
    bottom = _TOP
    for title, lines in panels:
        parts += _panel(title, lines, findings, bottom, x)
        bottom += _PANEL + 36
    parts += _axis(first, last, bottom - 36, x)
    height = bottom + 8
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
    start += f'font-size="12" fill="{_TEXT}">\n<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([start, *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, **more: object) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'


def _head(analysis: Analysis, findings: Sequence[dict[str, Any]]) -> list[str]:
    """The title, and a row for the first finding of each kind."""
    count = f"{len(analysis.groups)} group, {analysis.commit_count:,} commits in {analysis.record_count:,} records"
    parts = [
        _text(12, 26, "Offset history", font_size=18, font_weight="bold"),
        _text(12, 46, f"{count} of __consumer_offsets", fill=_GREY),
    ]
    shown = {row["kind"]: row for row in reversed(findings)}
    rows = [shown[kind] for kind in _KINDS if kind in shown]
    for number, row in enumerate(rows):
        y = 78 + number * _ROW
        parts.append(f'<rect x="12" y="{y - 11}" width="6" height="15" fill="{_KINDS[row["kind"]]}"/>')
        parts.append(_text(26, y, row["kind"], font_weight="bold"))
        parts.append(_text(90, y, f"{row['group']}: {row['text']}"))
        parts.append(_text(_WIDTH - 12, y, f"proved by {row['proof_count']} records", fill=_GREY, text_anchor="end"))
    return parts


def _panel(
    title: str, lines: Sequence[Line], findings: Sequence[dict[str, Any]], top: float, x: Callable[[datetime], float]
) -> list[str]:
    most = max(value for line in lines for value in line.values)
    tick = next(
        step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000) if most / step <= 4.5
    )
    highest = (int(most // tick) + 1) * tick

    def y(value: float) -> float:
        return top + _PANEL * (1 - value / highest)

    parts = [_text(_LEFT, top - 8, title, font_weight="bold")]
    for number in range(int(highest // tick) + 1):
        at = y(number * tick)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{number * tick:,}", fill=_GREY, text_anchor="end"))
    parts += _marks(findings, top, x)
    for number, line in enumerate(lines):
        steps = " ".join(f"H{x(at):.1f}V{y(value):.1f}" for at, value in zip(line.times, line.values, strict=True))
        path = f"M{x(line.times[0]):.1f} {y(line.values[0]):.1f}{steps}"
        parts.append(f'<path d="{path}" fill="none" stroke="{_COLOURS[number]}" stroke-width="1.6"/>')
        name = _WIDTH - _RIGHT - 80 * (len(lines) - number)
        parts.append(f'<rect x="{name}" y="{top - 14}" width="14" height="3" fill="{_COLOURS[number]}"/>')
        parts.append(_text(name + 20, top - 8, line.name, fill=_GREY))
    return parts


def _marks(findings: Sequence[dict[str, Any]], top: float, x: Callable[[datetime], float]) -> list[str]:
    """A dashed line where the group was moved, and a band where the group stalled, as in the report."""
    parts: dict[str, None] = {}  # keeps one of equal marks: a tool moves all partitions at once
    for row in findings:
        colour, end = _KINDS[row["kind"]], x(row["to_timestamp"])
        if row["kind"] == "stall":
            begin = x(row["from_timestamp"])
            area = f'x="{begin:.0f}" y="{top}" width="{end - begin:.0f}" height="{_PANEL}"'
            parts[f'<rect {area} fill="{colour}" opacity="0.14"/>'] = None
        else:
            begin = end
            line = f'd="M{end:.0f} {top}V{top + _PANEL}" stroke="{colour}"'
            parts[f'<path {line} stroke-width="1.4" stroke-dasharray="3 3"/>'] = None
        parts[_text(round(begin) + 5, top + 12, row["kind"], fill=colour, font_size=11)] = None
    return list(parts)


def _axis(first: datetime, last: datetime, y: float, x: Callable[[datetime], float]) -> list[str]:
    at = first.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    parts = []
    while at <= last:
        parts.append(_text(x(at), y + 18, f"{at:%H:%M}", fill=_GREY, text_anchor="middle"))
        at += timedelta(minutes=30)
    return parts


def main() -> None:
    with odradek.Broker() as broker:
        ExampleGroup(broker).play()
        picture = draw(analyse_offset_history(broker.bootstrap_servers))
    PICTURE.write_text(picture)
    print(f"written: {PICTURE.name}, {len(picture):,} bytes")


if __name__ == "__main__":
    main()
