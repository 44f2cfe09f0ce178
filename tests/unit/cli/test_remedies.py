"""What the command line adds to the errors of the client."""

from __future__ import annotations

import pytest

from odradek.cli.terminal import error_line, with_remedy
from odradek.core.errors import ErrorCode, KafkaError, OdradekError

RIGHT = ": the user of this connection has no right to it: an ACL must grant "
TOPIC = f"{RIGHT}Describe (to see it), Read (to read it) or Write (to send to it)"
GROUP = f"{RIGHT}Describe (to see it), Read (to commit or reset) or Delete"
NAME = ": a name has only the letters a-z and A-Z, digits, '.', '_' and '-'"
FILE = " (a line of the file of --command-config)"
INVALID = ErrorCode.invalid_topic_exception
CYRILLIC = "U+043E (CYRILLIC SMALL LETTER O)"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaError(ErrorCode.topic_authorization_failed, "topic t"), f"TOPIC_AUTHORIZATION_FAILED: topic t{TOPIC}"),
        (KafkaError(ErrorCode.group_authorization_failed, "group g"), f"GROUP_AUTHORIZATION_FAILED: group g{GROUP}"),
        (
            KafkaError(ErrorCode.topic_authorization_failed, "topic t: Topic authorization failed."),
            f"TOPIC_AUTHORIZATION_FAILED: topic t: Topic authorization failed{TOPIC}",
        ),
        (
            OdradekError("records were not delivered: CLUSTER_AUTHORIZATION_FAILED: the user may write to no topic"),
            f"records were not delivered: CLUSTER_AUTHORIZATION_FAILED: the user may write to no topic{RIGHT}it",
        ),
        (
            OdradekError("TOPIC_AUTHORIZATION_FAILED: grant the right Read on the topic t"),
            "TOPIC_AUTHORIZATION_FAILED: grant the right Read on the topic t",
        ),
        (OdradekError("cannot reach a:1: check bootstrap_servers"), "cannot reach a:1: check -b"),
        (
            OdradekError("cannot reach a:1: it is a listener with TLS: set security.protocol to SSL or SASL_SSL"),
            f"cannot reach a:1: it is a listener with TLS: set security.protocol to SSL or SASL_SSL{FILE}",
        ),
        (
            OdradekError("--command-config a, line 2: set security.protocol to SSL"),
            "--command-config a, line 2: set security.protocol to SSL",
        ),
        (
            OdradekError("listing topics: no answer within 5 ms"),
            "listing topics: no answer within 5 ms: try again, with a larger --timeout where the command has one",
        ),
        (
            OdradekError("at a:1: no reply within 4 ms: is a broker running there? check bootstrap_servers"),
            "at a:1: no reply within 4 ms: try again, with a larger --timeout. If that does not help, check -b",
        ),
        (
            OdradekError("at a:1: no reply within 4000 ms: is a broker running there? check bootstrap_servers"),
            "at a:1: no reply within 4000 ms: is a broker running there? check -b",
        ),
        (KafkaError(INVALID, "topic a b"), f"INVALID_TOPIC_EXCEPTION: topic a b{NAME}"),
        (KafkaError(INVALID, "topic ./a"), f"INVALID_TOPIC_EXCEPTION: topic ./a{NAME}"),
        (
            KafkaError(INVALID, "topic \u043erders"),
            f"INVALID_TOPIC_EXCEPTION: topic \u043erders: the name has the letter {CYRILLIC} among Latin letters: "
            "correct it",
        ),
        (
            KafkaError(INVALID, "topic a\u200b"),
            "INVALID_TOPIC_EXCEPTION: topic a\u200b: the name has an invisible character U+200B (ZERO WIDTH SPACE): "
            "correct it",
        ),
    ],
)
def test_an_error_has_its_remedy(error: OdradekError, text: str) -> None:
    assert with_remedy(error) == text


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (
            "--to 'k\u0430fka': expected kafka",
            " (a word has the letter U+0430 (CYRILLIC SMALL LETTER A) among Latin letters)",
        ),
        ("group \u0437\u0430\u043a\u0430\u0437\u044b not found", ""),
        ("caf\u00e9 not found", ""),
        (f"topic \u043erders: the name has the letter {CYRILLIC} among Latin letters", ""),
    ],
)
def test_a_line_names_a_letter_that_looks_like_another_one(
    line: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error_line(line)
    assert capsys.readouterr().err == f"odradek: {line}{end}\n"


def test_an_error_of_several_lines_is_one_line_in_which_a_tab_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    error_line("--file a\tb: it stopped:\n   at line 1\n")
    assert capsys.readouterr().err == "odradek: --file a\\tb: it stopped: at line 1\n"
