"""What the command line adds to the errors of the client."""

from __future__ import annotations

import pytest

from odradek.cli.terminal import with_remedy
from odradek.core.errors import ErrorCode, KafkaError, OdradekError

RIGHT = ": the user of this connection has no right to it: an ACL of the cluster must grant it"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaError(ErrorCode.topic_authorization_failed, "topic t"), f"TOPIC_AUTHORIZATION_FAILED: topic t{RIGHT}"),
        (
            KafkaError(ErrorCode.topic_authorization_failed, "topic t: Topic authorization failed."),
            f"TOPIC_AUTHORIZATION_FAILED: topic t: Topic authorization failed{RIGHT}",
        ),
        (
            OdradekError("records were not delivered: CLUSTER_AUTHORIZATION_FAILED: the user may write to no topic"),
            f"records were not delivered: CLUSTER_AUTHORIZATION_FAILED: the user may write to no topic{RIGHT}",
        ),
        (
            OdradekError("TOPIC_AUTHORIZATION_FAILED: grant the right Read on the topic t"),
            "TOPIC_AUTHORIZATION_FAILED: grant the right Read on the topic t",
        ),
        (OdradekError("cannot reach a:1: check bootstrap_servers"), "cannot reach a:1: check -b"),
    ],
)
def test_an_error_has_its_remedy(error: OdradekError, text: str) -> None:
    assert with_remedy(error) == text
