"""The three quorums of the metadata log on which all tests of the catalogue pass.

``ODRADEK_TEST_QUORUM`` chooses the quorum of every broker that a test starts in this process or as a fork. It is one of

* lone: that of ``odradek serve``, as without the variable;
* one-voter: each new directory is that of a voter;
* delayed: each batch is committed later (``support.delayed_quorum``).

``tests/oracle/test_three_quorums.py`` runs the tests of the catalogue with the second and the third.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KIND = "ODRADEK_TEST_QUORUM"
NOTES = "ODRADEK_TEST_QUORUM_NOTES"
"""A file that gets a line for each start of a broker, if it is set."""
LONE, ONE_VOTER, DELAYED = KINDS = ("lone", "one-voter", "delayed")


def install() -> None:
    """Makes this process use the quorum of the variable. Raises ValueError for another name."""
    kind = os.environ.get(KIND, LONE)
    if kind not in KINDS:
        raise ValueError(f"{KIND}={kind}: choose one of {', '.join(KINDS)}")
    if kind != LONE:
        _use(kind)


@contextmanager
def chosen(kind: str) -> Iterator[None]:
    """Within the block, brokers of this process use this quorum, whatever the variable says."""
    from odradek.broker.metadata import quorum
    from odradek.broker.node import BrokerNode

    before = BrokerNode._open_catalog, quorum.LoneQuorum
    _use(kind)
    try:
        yield
    finally:
        BrokerNode._open_catalog, quorum.LoneQuorum = before  # type: ignore[method-assign, misc]


def _use(kind: str) -> None:
    from odradek.broker.metadata import quorum
    from odradek.broker.node import BrokerNode
    from support.delayed_quorum import DelayedQuorum

    opens = getattr(BrokerNode._open_catalog, "of_the_node", BrokerNode._open_catalog)
    lone = DelayedQuorum.__base__

    def open_catalog(node: BrokerNode) -> None:
        if kind == ONE_VOTER:
            _make_voter(node)
        opens(node)
        assert {ONE_VOTER: node.quorum.epoch > 0, DELAYED: isinstance(node.quorum, DelayedQuorum)}.get(kind, True)
        _note(f"{kind} {node.quorum.epoch}")

    open_catalog.of_the_node = opens  # type: ignore[attr-defined]
    BrokerNode._open_catalog = open_catalog  # type: ignore[method-assign]
    quorum.LoneQuorum = DelayedQuorum if kind == DELAYED else lone  # type: ignore[misc, assignment]


def _make_voter(node: Any) -> None:
    from odradek.broker.metadata_log.log import DIRECTORY
    from odradek.storage import checkpoints
    from support.voters import make_voter

    directory = node.directory
    if not directory.files.exists(directory.path / DIRECTORY / checkpoints.QUORUM_STATE):
        make_voter(directory.path, directory.node_id, files=directory.files)


def _note(line: str) -> None:
    if path := os.environ.get(NOTES):
        with Path(path).open("a") as notes:
            notes.write(f"{line}\n")
