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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.broker.metadata.quorum import InThread, MetadataQuorum
    from odradek.broker.metadata.stored_catalog import StoredCatalog
    from odradek.storage.disk.files import Files

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
    from odradek.broker.node.writer_role import WriterRole

    before = WriterRole.quorums
    _use(kind)
    try:
        yield
    finally:
        WriterRole.quorums = before


def _use(kind: str) -> None:
    from odradek.broker.metadata.quorum import LoneQuorum, OneVoterQuorum, Quorums
    from odradek.broker.metadata_log.log import DIRECTORY
    from odradek.broker.node.writer_role import WriterRole
    from odradek.storage.disk import checkpoints
    from support.delayed_quorum import DelayedQuorum
    from support.voters import make_voter

    class QuorumsOfTests(Quorums):
        def prepare(self, data_dir: Path, node_id: int, files: Files) -> None:
            if kind == ONE_VOTER and not files.exists(data_dir / DIRECTORY / checkpoints.QUORUM_STATE):
                make_voter(data_dir, node_id, files=files)

        def quorum_of(self, stored: StoredCatalog, node_id: int, in_thread: InThread) -> MetadataQuorum:
            made = super().quorum_of(stored, node_id, in_thread)
            if kind == DELAYED and type(made) is LoneQuorum:
                made = DelayedQuorum(stored.log, node_id, in_thread)
            assert isinstance(made, {LONE: LoneQuorum, ONE_VOTER: OneVoterQuorum, DELAYED: DelayedQuorum}[kind])
            _note(kind)
            return made

    WriterRole.quorums = QuorumsOfTests()


def _note(line: str) -> None:
    if path := os.environ.get(NOTES):
        with Path(path).open("a") as notes:
            notes.write(f"{line}\n")
