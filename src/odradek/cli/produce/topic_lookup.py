"""The lookup of the topic of ``odradek produce``, before the first record: an error, or a warning about a new topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.cli.options import connect
from odradek.cli.terminal import CommandError, warning_lines
from odradek.cli.undo_file import pasted
from odradek.core.errors import KafkaError
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    from odradek.cli.produce.options import ProduceLine
    from odradek.client.producer import Producer


def look_up(producer: Producer, line: ProduceLine) -> None:
    """Looks the topic up, so that the command fails at once with the error that the first record would get.

    A topic that the broker creates is named on stderr, because its name may be a slip."""
    from odradek.client.errors import UnknownTopic

    meant = None if line.no_create else _meant_if_new(line)
    try:
        producer.partitions_for(line.topic)
    except UnknownTopic as error:
        if not line.no_create:
            raise
        with connect(line.bootstrap, 5_000, line.command_config) as admin:
            near = nearest(line.topic, admin.describe_topics())
        command = pasted("odradek", "topics", "create", line.topic, "--partitions", "N", b=line.bootstrap)
        raise CommandError(
            f"unknown topic {line.topic}{near}: create it with `{command}`, or omit --no-create, and the broker"
            " creates it (if its auto.create.topics.enable is true)"
        ) from error
    if meant is not None:
        warning_lines(f"Warning: topic {line.topic} did not exist{meant}: the broker has created it.")


def _meant_if_new(line: ProduceLine) -> str | None:
    """Returns the nearest name if the topic does not exist; None if it does, or if the user may not see it."""
    try:
        with connect(line.bootstrap, 5_000, line.command_config) as admin:
            if line.topic in admin.describe_topics([line.topic], missing_ok=True):
                return None
            return nearest(line.topic, admin.describe_topics())
    except KafkaError:
        return None
