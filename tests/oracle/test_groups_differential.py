"""Groups and offsets: odradek's replies and records equal those of Apache Kafka.

``DEVIATIONS`` lists intended differences with reasons; an entry without a difference fails. To let time pass, the
recording waited, and these tests move the broker's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scenarios_groups
import scenarios_groups_admin
import scenarios_groups_by_hand
import scenarios_groups_chance
import scenarios_groups_classic
import scenarios_groups_commits
import scenarios_groups_consumer
import scenarios_groups_expiry
import scenarios_groups_later
import scenarios_groups_migration
import scenarios_groups_restarts
import scenarios_groups_static
import scenarios_groups_timeouts
import scenarios_groups_topics
from recording import Scenario, compare, load, run_scenario
from suite_brokers import brokers_of

import odradek

SUITES = {
    "groups": scenarios_groups.SCENARIOS,
    "groups_admin": scenarios_groups_admin.SCENARIOS,
    "groups_chance": scenarios_groups_chance.SCENARIOS,
    "groups_classic": scenarios_groups_classic.SCENARIOS,
    "groups_commits": scenarios_groups_commits.SCENARIOS,
    "groups_consumer": scenarios_groups_consumer.SCENARIOS,
    "groups_migration": scenarios_groups_migration.SCENARIOS,
    "groups_static": scenarios_groups_static.SCENARIOS,
    "groups_topics": scenarios_groups_topics.SCENARIOS,
}
# Suites with their own settings.
APART = {
    "groups_by_hand": scenarios_groups_by_hand,
    "groups_expiry": scenarios_groups_expiry,
    "groups_later": scenarios_groups_later,
    "groups_restarts": scenarios_groups_restarts,
    "groups_timeouts": scenarios_groups_timeouts,
}
claim, behaviour = pytest.mark.claim, pytest.mark.behaviour
SHOWN = {
    "two_members_join_and_leave": [claim(61, 62)],
    "the_offsets_topic_is_deleted": [claim(81, part=True)],
    "the_offsets_topic_grows": [claim(81, part=True)],
    "the_offsets_topic_is_written_by_hand": [claim(87, part="ab")],
    "commits_of_an_unknown_member": [behaviour(1, 2)],
    "commits_while_a_group_lives": [behaviour(3, 4)],
    "commits_in_preparing_rebalance": [behaviour(5)],
    "requests_that_renew_a_session": [behaviour(6)],
    "metadata_too_long": [behaviour(7)],
    "commits_without_a_group": [behaviour(8)],
    "unusual_offsets": [behaviour(9)],
    "commits_by_every_version": [behaviour(11, part=True)],
    "offsets_expire_after_their_own_retention": [behaviour(13)],
    "offsets_of_an_empty_group_expire": [behaviour(14)],
    "retention_continues": [behaviour(14, part=True)],
    "unsubscribed_topics_expire": [behaviour(15)],
    "offsets_of_a_simple_group_expire": [behaviour(16)],
    "nothing_expires_while_a_group_rebalances": [behaviour(17)],
    "groups_without_offsets_are_removed": [behaviour(18)],
    "a_deleted_group_is_created_again": [behaviour(20, part=True)],
    "groups_without_members_after_a_restart": [behaviour(20, part=True)],
    "offsets_deleted": [behaviour(21)],
    "groups_deleted": [behaviour(22)],
    "a_deleted_topic_loses_its_offsets": [behaviour(23)],
    "commits_by_topic_id": [behaviour(24)],
    "fetches_of_many_groups": [behaviour(25, 26)],
    "commits_with_epochs": [behaviour(30, 31), behaviour(28, part="a")],
    "epochs_after_a_restart": [behaviour(28, part=True)],
    "a_classic_member_among_consumers": [behaviour(29)],
    "a_classic_group_is_upgraded": [behaviour(38, part=True)],
    "the_last_consumer_leaves": [behaviour(38, part=True)],
    "converted_groups_after_a_restart": [behaviour(38, part=True)],
    "invalid_joins": [behaviour(42)],
    "a_static_member_comes_back": [behaviour(43, part="a")],
    "a_static_member_waits_and_is_replaced": [behaviour(43, part="b")],
    "a_follower_does_not_sync": [behaviour(44, part="b")],
    "a_rebalance_chained_to_the_next": [behaviour(45)],
    "incompatible_protocols": [behaviour(46, part="b")],
    "a_full_group": [behaviour(46, part="a")],
}
"""The claims and behaviours that each scenario shows."""


def cases(scenarios_by_suite: dict[str, tuple[Scenario, ...]]) -> list[Any]:
    return [
        pytest.param(suite, scenario, marks=SHOWN.get(scenario.__name__, []))
        for suite, scenarios in scenarios_by_suite.items()
        for scenario in scenarios
    ]


CASES = cases(SUITES)
CASES_APART = cases({suite: module.SCENARIOS for suite, module in APART.items()})

# Pattern of a difference's line, and the reason for the difference.
_AGAIN = (
    "Kafka drops the earlier of two waiting requests of a member and never answers it; this broker answers it with "
    "REBALANCE_IN_PROGRESS."
)
_UNREADABLE = (
    "A subscription with a length beyond its bytes blocks Kafka's rebalance permanently; this broker treats it as "
    "unreadable, like a shorter one."
)
_OLD_NAME = (
    "Kafka still looks for a member under an instance id that the member gave up, and refuses a new "
    "member with this id; here the id is free again."
)
_NO_ID = "An epoch without a member id is an internal error in Kafka; here it is an unknown member, like an empty id."
_HALF_GONE = (
    "After a refused classic join Kafka drops an empty KIP-848 group but keeps its records, so the group exists again "
    "after the next start; here the records are deleted when the group becomes a classic one."
)
_NO_TOPIC = (
    "Here a load deletes offsets of deleted topics, since a crash may have happened between the deletion of a topic "
    "and that of its offsets; Kafka keeps such offsets, which otherwise only a manual write can create."
)
_GONE = "Kafka never answers the sync of a removed member; this broker answers it with UNKNOWN_MEMBER_ID."
DEVIATIONS: dict[str, list[tuple[str, str]]] = {
    "a_member_that_syncs_leaves": [(r"\"<no answer>\" found .*unknown_member_id", _GONE)],
    "a_classic_member_joins_an_empty_kip_848_group": [(r"^6 records", _HALF_GONE)],
    "a_static_consumer_changes_its_name": [(r"^10 consumer_group_heartbeat", _OLD_NAME)],
    "fetches_with_epochs": [(r"^1[67] .*\"unknown_server_error\" found \"unknown_member_id\"", _NO_ID)],
    "joins_twice_at_once": [(r"^4 .*\"<no answer>\" found .*rebalance_in_progress", _AGAIN)],
    "subscriptions_that_claim_too_much": [
        (r"join_group .*\"<no answer>\" found .*error_code\": \"none", _UNREADABLE),
        (r"group_state: expected \"PreparingRebalance\" found \"CompletingRebalance", _UNREADABLE),
    ],
    "the_offsets_topic_is_written_by_hand": [
        (r"^3 offset_fetch .*committed_offset: expected 7 found -1$", _NO_TOPIC),
        (r"^3 offset_fetch .*metadata: expected \"by hand\" found \"\"$", _NO_TOPIC),
        (r"^7 offset_fetch .*\"no-such-topic\"", _NO_TOPIC),
    ],
    "syncs_twice_at_once": [(r"^6 .*\"<no answer>\" found .*rebalance_in_progress", _AGAIN)],
}


def check(suite: str, scenario: Scenario, found: list[dict[str, object]]) -> None:
    """Fails with every difference that is not a known deviation, and with known deviations that do not occur."""
    known = [pattern for pattern, _ in DEVIATIONS.get(scenario.__name__, [])]
    compare(load(suite)[scenario.__name__], found, known)


@pytest.fixture(scope="module")
def apart() -> Iterator[Callable[[str], odradek.Broker]]:
    """The broker with the settings of a suite. Tests move its clock."""
    with brokers_of(APART) as broker_for:
        yield broker_for


@pytest.mark.parametrize(("suite", "scenario"), CASES_APART, ids=lambda case: getattr(case, "__name__", case))
def test_groups_expire_and_restart_as_in_apache_kafka(
    apart: Callable[[str], odradek.Broker], suite: str, scenario: Scenario
) -> None:
    broker = apart(suite)

    def pass_ms(ms: int) -> None:
        broker.clock.advance(milliseconds=ms)

    def restart() -> None:
        broker.stop()
        broker.start()

    check(suite, scenario, run_scenario(broker.bootstrap_servers, scenario, pass_ms, restart))


@pytest.mark.parametrize(("suite", "scenario"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_groups_equal_those_of_apache_kafka(bootstrap: str, suite: str, scenario: Scenario) -> None:
    check(suite, scenario, run_scenario(bootstrap, scenario))


def test_every_recorded_scenario_is_compared() -> None:
    apart = {suite: module.SCENARIOS for suite, module in APART.items()}
    for suite, scenarios in (SUITES | apart).items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in scenarios)


def test_the_scenarios_that_show_claims_exist() -> None:
    assert SHOWN.keys() <= {case.values[1].__name__ for case in CASES + CASES_APART}
