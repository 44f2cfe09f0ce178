"""A topic as an argument or, as in Kafka's tools, as the value of ``--topic``."""

from __future__ import annotations

from odradek.cli.terminal import CommandError


def only_topic(given: str | None, option: str | None, metavar: str = "TOPIC") -> str:
    """Returns the topic, which is given once. Raises CommandError."""
    if given is not None and option is not None and given != option:
        raise CommandError(f"topic {given} and --topic {option}: give one topic, as an argument or with --topic")
    topic = given if given is not None else option
    if topic is None:
        raise CommandError(f"missing argument '{metavar}': name the topic, as an argument or with --topic")
    if not topic:
        raise CommandError("the topic's name cannot be empty")
    return topic
