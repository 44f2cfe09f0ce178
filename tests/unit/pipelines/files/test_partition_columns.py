"""Columns that cannot name folders: the error says whether the other writer could."""

from __future__ import annotations

import pyarrow as pa
import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.files.partition_folders import check_partition_columns


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (pa.float64(), "a column of type double cannot name folders with --writer workers"),
        (pa.struct([("a", pa.int64())]), "a column of type struct<a: int64> cannot name folders"),
    ],
)
def test_only_a_floating_point_number_depends_on_the_writer(kind: pa.DataType, says: str) -> None:
    schema = pa.schema([("x", kind), ("value", pa.binary())])
    with pytest.raises(ConfigError) as error:
        check_partition_columns(schema, ["x"])
    assert str(error.value) == f"partition_by x: {says}"
