"""A strict reader of Prometheus' text format, with the rules of ``promtool check metrics``."""

from __future__ import annotations

import re

Sample = tuple[str, tuple[tuple[str, str], ...]]
"""The name and the labels of a sample."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_OF_SUMMARY = ("_sum", "_count")


def read_metrics(text: str) -> dict[Sample, float]:
    """Reads a page of metrics. Raises AssertionError for what Prometheus or promtool would refuse."""
    assert text.endswith("\n"), "the last line has no end"
    found: dict[Sample, float] = {}
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    present = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            assert name not in helps, f"{name} has two help texts"
            assert words, f"{name} has no help text"
            helps[name] = words
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            assert name in helps, f"the type of {name} has no help text before it"
            assert name not in types, f"{name} has two types"
            assert kind in ("counter", "gauge", "summary"), line
            assert name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}"
            types[name], present = kind, name
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            name = match["name"]
            is_part = types.get(present) == "summary" and name in {present + end for end in _OF_SUMMARY}
            assert name == present or is_part, f"{name} is not behind its type"
            sample = name, _labels(match["labels"] or "")
            assert sample not in found, f"{sample} comes twice"
            value = float(match["value"])
            assert value == value, f"{sample} is NaN"
            found[sample] = value
    assert types.keys() == helps.keys()
    assert all(_NAME.fullmatch(name) for name in types)
    return found


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    labels, at = [], 0
    while at < len(text):
        match = _LABEL.match(text, at)
        assert match is not None, text
        labels.append((match[1], match[2]))
        at = match.end()
    assert len(dict(labels)) == len(labels), text
    return tuple(labels)
