"""The options with which a pipeline sends to a topic of the cluster that it reads. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from odradek.pipelines.values.arguments import wrong
from odradek.spark.writes.write_options import TRANSACTION_TIMEOUT_MS, connection_options, parse_write_options

_CONNECTION = ("bootstrap.servers", "security.", "sasl.", "ssl.")
"""Settings of the connection to the cluster. They are the same for reading and for sending."""
_TIMEOUT = "kafka.transaction.timeout.ms"


def sending_options(
    topic: str, reading: Mapping[str, str], producer: Mapping[str, str], *, with_times: bool, in_transactions: bool
) -> dict[str, str]:
    """Returns the options of ``write.format("odradek")``.

    ``reading``: the options of the source; only those of the connection are kept. ``producer``: options with Kafka's
    names (``compression.type``). ``with_times``: the records get the timestamps of the rows. Raises ConfigError for
    wrong options of the producer.
    """
    own = {"kafka.allow.auto.create.topics": "false"}  # so that a mistyped topic is an error, not a new topic
    if in_transactions:
        own[_TIMEOUT] = str(TRANSACTION_TIMEOUT_MS)
    for given, value in producer.items():
        name = given.lower().removeprefix("kafka.")
        if name.startswith(_CONNECTION):  # the topic was looked up in the cluster that is read
            raise wrong("producer_options", f" {given}: records are sent to the cluster that is read")
        own[f"kafka.{name}"] = value
    own |= {"topic": topic, "includetimestamp": str(with_times).lower()}
    chosen = connection_options(reading) | own
    parsed = parse_write_options(chosen)
    if in_transactions:
        replace(parsed.producer, transactional_id="checked here")  # acks and idempotence have to allow transactions
    return chosen
