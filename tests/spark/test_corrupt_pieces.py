"""A task that reads a corrupt batch, from brokers that are scripted."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from support.scripted import scripted

from odradek import TopicPartition
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.offset_ranges import Piece
from odradek.spark.options import parse_options
from odradek.spark.piece_progress import PieceProgress
from odradek.spark.piece_reader import read_piece

T0 = TopicPartition("t", 0)


def batch(first: int) -> bytes:
    """Ten records from an offset on."""
    records = [SimpleRecord(b"k", b"v%d" % offset) for offset in range(first, first + 10)]
    return encode_batch(records, now_ms=1, base_offset=first)


@pytest.mark.parametrize("fail", [True, False])
def test_a_task_leaves_a_corrupt_batch_out_if_data_loss_may_be(fail: bool, caplog: pytest.LogCaptureFixture) -> None:
    read_offsets: list[int] = []
    says = "t-0: offsets 10 to 19 cannot be read, because the batch is corrupt"
    progress, piece = PieceProgress(T0, 0), Piece(T0, 0, 30, None, -1)
    with scripted(2) as cluster:
        cluster.log = [(9, batch(0)), (19, batch(10)[:-1] + b"?"), (29, batch(20))]
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "t", "failOnDataLoss": str(fail)}
        options = parse_options(given, streaming=False)
        with pytest.raises(DataLoss, match=says) if fail else nullcontext():
            for found in read_piece(options, piece, progress):
                read_offsets += found.column("offset").to_pylist()
    assert read_offsets == list(range(10)) + ([] if fail else list(range(20, 30)))
    if not fail:
        assert says in caplog.text
        assert [(one.start, one.end) for one in progress.read] == [(0, 10), (20, 30)]
        assert [(one.start, one.end) for one in progress.lost] == [(10, 20)]
