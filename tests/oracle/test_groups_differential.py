"""Groups and offsets: what odradek answers, and writes, is what Apache Kafka 4.3 answered and wrote.

Where odradek does otherwise on purpose, ``DEVIATIONS`` says where and why; an entry that is no longer true fails.
Time passes on odradek by moving its clock, where Apache Kafka was waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
CASES = [(suite, scenario) for suite, scenarios in SUITES.items() for scenario in scenarios]
# Suites with settings of their own.
APART = {
    "groups_by_hand": scenarios_groups_by_hand,
    "groups_expiry": scenarios_groups_expiry,
    "groups_later": scenarios_groups_later,
    "groups_restarts": scenarios_groups_restarts,
    "groups_timeouts": scenarios_groups_timeouts,
}
CASES_APART = [(suite, scenario) for suite, module in APART.items() for scenario in module.SCENARIOS]

# Pattern of a difference's line, and why it may be.
_AGAIN = (
    "Kafka forgets the earlier of two requests a member waits with, and whoever sent it waits on for ever; here it is "
    "told to come again."
)
_UNREADABLE = (
    "A subscription that claims more than its bytes hold stops Kafka's rebalance for good; here it counts as one that "
    "cannot be read, like a shorter one."
)
_OLD_NAME = (
    "Kafka goes on looking for a member under an instance id that it has given up, and refuses whoever comes with it; "
    "here that id is free again."
)
_NO_ID = "Kafka stumbles over an epoch without a member id; here that is an unknown member, like an empty id."
_HALF_GONE = (
    "A classic join that is refused makes Kafka forget an empty KIP-848 group whose records stay in the log, to come "
    "back with the next start; here they are taken out when the group becomes a classic one."
)
_NO_TOPIC = (
    "Here a load deletes what was committed for topics that are gone, since a crash may have come between a topic's "
    "end and that of its offsets; Kafka keeps such offsets, which only a hand can have written otherwise."
)
_GONE = "Kafka leaves the sync of a member that is removed unanswered for good; here it is told that it is no member."
DEVIATIONS: dict[str, list[tuple[str, str]]] = {
    "a_member_that_syncs_leaves": [(r"\"<no answer>\" found .*unknown_member_id", _GONE)],
    "a_stranger_comes_to_an_empty_consumer_group": [(r"^6 records", _HALF_GONE)],
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
    """Fails with every difference that is not among the known deviations, and with those that are no more."""
    known = [pattern for pattern, _ in DEVIATIONS.get(scenario.__name__, [])]
    compare(load(suite)[scenario.__name__], found, known)


@pytest.fixture(scope="module")
def apart() -> Iterator[Callable[[str], odradek.Broker]]:
    """The broker with the settings of a suite; tests move its clock."""
    with brokers_of(APART) as broker_for:
        yield broker_for


@pytest.mark.claim(81, 87)
@pytest.mark.behaviour(6, 13, 14, 15, 16, 17, 18, 20, 28, 38, 44, 46)
@pytest.mark.parametrize(("suite", "scenario"), CASES_APART, ids=lambda case: getattr(case, "__name__", case))
def test_groups_live_and_expire_as_in_apache_kafka(
    apart: Callable[[str], odradek.Broker], suite: str, scenario: Scenario
) -> None:
    # behaviour 13 (offsets_expire_when_they_were_told_to); behaviour 14 (offsets_of_an_empty_group_expire)
    # behaviour 15 (topics_nobody_reads_expire); behaviour 16 (offsets_of_a_simple_group_expire)
    # behaviour 17 (nothing_expires_while_a_group_rebalances); behaviour 18 (groups_without_offsets_vanish)
    # behaviour 6 (signs_of_life); behaviour 44 (a_follower_does_not_sync); behaviour 46 (a_full_group)
    # claim 81 (the_offsets_topic_is_deleted, the_offsets_topic_grows); claim 87 (the_offsets_topic_is_written_by_hand)
    # behaviour 28 (epochs_after_a_restart); behaviour 14 (retention_goes_on)
    # behaviour 20 (groups_without_members_are_found_again); behaviour 38 (groups_that_changed_sides_are_found_again)
    broker = apart(suite)

    def pass_ms(ms: int) -> None:
        broker.clock.advance(milliseconds=ms)

    def restart() -> None:
        broker.stop()
        broker.start()

    check(suite, scenario, run_scenario(broker.bootstrap_servers, scenario, pass_ms, restart))


@pytest.mark.claim(61, 62)
@pytest.mark.behaviour(1, 2, 3, 4, 5, 7, 8, 9, 11, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 38, 42, 43, 45, 46)
@pytest.mark.parametrize(("suite", "scenario"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_groups_are_those_of_apache_kafka(bootstrap: str, suite: str, scenario: Scenario) -> None:
    # claims 61, 62 (two_members_meet_and_part)
    # behaviours 1, 2 (commits_of_a_stranger); behaviours 3, 4 (commits_while_a_group_lives)
    # behaviour 5 (commits_while_joins_are_gathered); behaviour 7 (metadata_too_long)
    # behaviour 8 (commits_without_a_group); behaviour 9 (offsets_as_odd_as_may_be)
    # behaviour 11 (commits_by_every_version); behaviour 24 (commits_by_topic_id)
    # behaviour 23 (a_deleted_topic_takes_its_offsets_along)
    # behaviours 28, 30, 31 (commits_with_epochs)
    # behaviour 29 (a_classic_member_among_consumers)
    # behaviour 38 (a_classic_group_is_upgraded, the_last_consumer_leaves)
    # behaviours 25, 26 (fetches_of_many_groups); behaviour 42 (joins_that_cannot_be)
    # behaviour 20 (a_deleted_group_begins_anew); behaviour 21 (offsets_deleted); behaviour 22 (groups_deleted)
    # behaviour 43 (a_static_member_comes_back, a_static_member_waits_and_is_replaced)
    # behaviour 45 (a_rebalance_chained_to_the_next); behaviour 46 (protocols_that_do_not_fit)
    check(suite, scenario, run_scenario(bootstrap, scenario))


def test_every_recorded_scenario_is_compared() -> None:
    apart = {suite: module.SCENARIOS for suite, module in APART.items()}
    for suite, scenarios in (SUITES | apart).items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in scenarios)
