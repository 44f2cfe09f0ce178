"""``odradek transactions``: help and wrong options. ``tests/client/test_transactions_kafka.py`` has the rest."""

from __future__ import annotations

import pytest

from odradek.cli.main import run

Capture = pytest.CaptureFixture[str]
COMMANDS = ["list", "describe", "describe-producers", "find-hanging", "abort", "force-terminate"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: Capture) -> None:
    assert run(["transactions", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"  odradek transactions {command}" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("arguments", "error"), [
    (["find-hanging"], "missing option '--topic' or '--broker-id': one of them limits the search"),
    (["find-hanging", "--partition", "0", "--broker-id", "1"], "--partition needs --topic"),
    (["describe", "--transactional-id", ""], "--transactional-id: the name cannot be empty"),
    (["abort", "--topic", "", "--partition", "0"], "--topic: the name cannot be empty"),
    (["abort", "--topic", "t", "--partition", "0"], "missing option '--start-offset', or '--producer-id'"),
    (["abort", "--topic", "t", "--partition", "0", "--producer-id", "1", "--producer-epoch", "0"],
     "missing option '--coordinator-epoch', which --producer-id needs"),
])  # fmt: skip
def test_wrong_options_are_refused_before_a_connection(arguments: list[str], error: str, capsys: Capture) -> None:
    assert run(["transactions", *arguments, "-b", "127.0.0.1:1"]) == 2
    assert error in capsys.readouterr().err


def test_a_broker_without_an_answer_is_reported_in_one_line(capsys: Capture) -> None:
    assert run(["transactions", "list", "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "odradek: cannot reach 127.0.0.1:1: connection refused\n"
