"""``odradek transactions``: help, wrong options, an unreachable or unknown broker, and ``force-terminate``.

``tests/client/test_transactions_kafka.py`` tests the other commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.brokers import RunningBroker

from odradek import Admin, Producer, TopicPartition
from odradek.cli.main import run
from odradek.client import ConsumerGroupMetadata, NewTopic, ProducerFenced

Capture = pytest.CaptureFixture[str]
COMMANDS = ["list", "describe", "describe-producers", "find-hanging", "abort", "force-terminate"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: Capture) -> None:
    assert run(["transactions", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"  odradek transactions {command}" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("arguments", "error"), [
    (["find-hanging"], "missing argument 'TOPIC', '--topic' or '--broker-id': one of them limits the search"),
    (["find-hanging", "--partition", "0", "--broker-id", "1"], "--partition needs --topic"),
    (["describe", "--transactional-id", ""], "--transactional-id is empty: give ID"),
    (["abort", "--topic", "", "--partition", "0"], "--topic is empty: give TOPIC"),
    (["abort", "--topic", "t", "--partition", "0"], "missing option '--start-offset', or '--producer-id'"),
    (["abort", "--topic", "t", "--partition", "0", "--producer-id", "1", "--producer-epoch", "0"],
     "missing option '--coordinator-epoch', which --producer-id needs"),
    (["abort", "--topic", "t", "--partition", "0", "--start-offset", "0", "--producer-id", "1", "--yes"],
     "--start-offset and --producer-id with its epochs both name a transaction: give one of them"),
    (["abort", "--topic", "t", "--partition", "0", "--producer-id", "1", "--producer-epoch", "32768",
      "--coordinator-epoch", "0", "--yes"], "--producer-epoch '"),
    (["list", "--duration-filter", str(1 << 63)], "--duration-filter '"),
])  # fmt: skip
def test_wrong_options_are_refused_before_a_connection(arguments: list[str], error: str, capsys: Capture) -> None:
    assert run(["transactions", *arguments, "-b", "127.0.0.1:1"]) == 2
    assert error in capsys.readouterr().err


def test_a_name_stands_alone_or_has_its_option(bootstrap: str, topic: str, group: str, capsys: Capture) -> None:
    """Commands for groups and topics take the name alone, so a person writes it alone here, too."""
    with Producer(bootstrap, transactional_id=f"{group}-bank") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"1", partition=0)
        producer.flush()
        for words, option in (
            (["describe", f"{group}-bank"], ["describe", "--transactional-id", f"{group}-bank"]),
            (["describe-producers", f"{topic}:0"], ["describe-producers", "--topic", topic, "--partition", "0"]),
            (["describe-producers", topic, "--partition", "0"], ["describe-producers", f"{topic}:0", "--topic", topic]),
            (["find-hanging", topic], ["find-hanging", "--topic", topic]),
            (["find-hanging", f"{topic}:0"], ["find-hanging", "--topic", topic, "--partition", "0"]),
        ):
            shown = []
            for line in (words, option):
                assert run(["transactions", *line, "-b", bootstrap, "--json"]) == 0, line
                shown.append([row | {"duration_ms": 0} for row in _rows(json.loads(capsys.readouterr().out))])
            assert shown[0] == shown[1]
            assert shown[0] or words[0] == "find-hanging"
        assert run(["transactions", "force-terminate", f"{group}-bank", "--yes", "-b", bootstrap]) == 0
    assert f"Fenced the producers of {group}-bank" in capsys.readouterr().out


def _rows(found: Any) -> list[dict[str, Any]]:
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize(("words", "remedy"), [
    (["describe", "--json"], "missing argument 'ID' or '--transactional-id': odradek transactions list shows the ids"),
    (["describe", "a", "--transactional-id", "b"], "ID a and --transactional-id b: give one id"),
    (["describe-producers", "orders"], "name one partition: orders:0, or --topic orders --partition 0"),
    (["describe-producers", "orders:x"], "'orders:x': expected TOPIC or TOPIC:N, with the number of one partition"),
    (["describe-producers", "orders:0", "--partition", "1"], "orders:0 and --partition 1: give one partition"),
    (["find-hanging", "orders", "--topic", "pay"], "topic orders and --topic pay: give one topic"),
])  # fmt: skip
def test_a_name_that_is_missing_or_given_twice_is_refused(words: list[str], remedy: str, capsys: Capture) -> None:
    """Commands for groups and topics take the name alone, so a person tries it here."""
    at = [] if "-b" in words else ["-b", "127.0.0.1:1"]
    assert run(["transactions", words[0], *at, *words[1:]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert remedy in error


def test_an_unknown_id_is_shown_with_a_similar_one(bootstrap: str, group: str, capsys: Capture) -> None:
    with Producer(bootstrap, transactional_id=f"{group}-bank") as producer:
        producer.init_transactions()
    for command, yes in (("describe", []), ("force-terminate", ["--yes"])):
        line = ["transactions", command, *yes, "-b", bootstrap, "--transactional-id"]
        assert run([*line, f"{group}-bnk"]) == 2
        assert capsys.readouterr().err == (
            f"odradek: TRANSACTIONAL_ID_NOT_FOUND: transactional id '{group}-bnk' does not exist, or has expired (did "
            f"you mean {group}-bank?)\n"
        )
        assert run([*line, "quite-another-name"]) == 2
        assert capsys.readouterr().err.endswith("or has expired: odradek transactions list shows the ids\n")


def test_an_unreachable_broker_is_reported_in_one_line(capsys: Capture) -> None:
    assert run(["transactions", "list", "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        "odradek: cannot reach 127.0.0.1:1: connection refused: is a broker running there? check -b\n"
    )


def test_force_terminate_works_whatever_the_brokers_longest_timeout_is(
    own_broker: Callable[..., RunningBroker], capsys: Capture
) -> None:
    bootstrap = own_broker(transaction_max_timeout_ms="5000").bootstrap
    with (
        Admin(bootstrap) as admin,
        Producer(bootstrap, transactional_id="bank", transaction_timeout_ms=5000) as fenced,
    ):
        admin.create_topics([NewTopic("t", 1)])
        fenced.init_transactions()
        assert run(["transactions", "force-terminate", "--transactional-id", "bank", "--yes", "-b", bootstrap]) == 0
        assert "Fenced the producers of bank" in capsys.readouterr().out
        fenced.begin_transaction()
        with pytest.raises(ProducerFenced):
            fenced.send_offsets_to_transaction({TopicPartition("t", 0): 1}, ConsumerGroupMetadata("g"))


def test_a_search_of_an_unknown_broker_is_an_error(own_broker: Callable[..., RunningBroker], capsys: Capture) -> None:
    """An empty result of the search would say that no transaction hangs."""
    bootstrap = own_broker().bootstrap
    arguments = ["transactions", "find-hanging", "--broker-id", "77", "--timeout", "1000", "-b", bootstrap]
    assert run(arguments) == 2
    assert capsys.readouterr().err == "odradek: --broker-id 77: the cluster has broker 1\n"
