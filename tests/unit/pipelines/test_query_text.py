"""The check of a SQL query without Spark: what is surely wrong is found, and no right query is refused."""

from __future__ import annotations

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.transforms.query_text import check_query


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC key, value FROM records", r"begins with SELECT, WITH, FROM or VALUES, not with SELEC \(did you mean"),
        ("DROP TABLE x", "not with DROP$"),
        ("SELECT 'a AS value FROM records", r"the quote ' at character 8 has no end"),
        ("SELECT key,\n value` FROM records", r"the quote ` at line 2, character 7 has no end"),
        ("SELECT concat(key, (value) FROM records", r"the \( at character 14 is not closed"),
        ("SELECT key) FROM records", r"the \) at character 11 closes nothing"),
        ("SELECT a[0) FROM records", r"the \) at character 11 closes nothing"),
        ("SELECT key /* a /* b */ FROM records", r"/\* has no end"),
    ],
)
def test_a_wrong_query_is_found_without_spark(query: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_query(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT key, value FROM records",
        "  select value FROM records;",
        "-- a comment with ( and '\nSELECT value FROM records -- it's",
        "/* a /* b ' */ ( */ WITH r AS (SELECT * FROM records) SELECT value FROM r",
        "(SELECT value FROM records)",
        "FROM records |> SELECT value",
        "SELECT 'it''s (' AS value, \"a)\" AS `k(``y` FROM records",
        r"SELECT r'C:\' AS value FROM records",
        r"SELECT 'it\'s (' AS value FROM records",
        "SELECT /*+ BROADCAST(r) */ m['a'][0] AS value FROM records r",
        "SELECT transform(split(value, ','), x -> (x || ')'))[0] AS value FROM records",
        "main: BEGIN SELECT value FROM records; END",
        "VALUES (1), (2)",
    ],
)
def test_a_right_query_is_accepted(query: str) -> None:
    check_query(query)
