"""An adoption gives the table's checkpoint another name. It leaves every other folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines import adopt
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.checkpoint_mark import check_own_checkpoint, mark
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.formats.target import Target

NOWHERE = "127.0.0.1:1"


def begun(folder: Path) -> Path:
    """A table whose checkpoint is beside it."""
    location = LocalLocation(folder)
    location.make()
    mark(
        LocalLocation(folder.with_name(f"{folder.name}-checkpoint")),
        begin_table(location, Target(str(folder)).layout()),
    )
    return folder


def everything(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if "_odradek/" not in str(path))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("b", "is no checkpoint: it has _odradek"),
        ("a", "is no checkpoint: it has _odradek"),
        ("docs", r"is no checkpoint: it has letter\.txt"),
        ("a-checkpoint", "is the checkpoint of another query than the one for "),
        ("sparks", "is the checkpoint of another query than the one for "),
    ],
)
def test_another_folder_is_not_renamed(given: str, says: str, tmp_path: Path) -> None:
    """Before, it was, with exit code 0: so a table was gone for its readers."""
    begun(tmp_path / "a")
    table = begun(tmp_path / "b")
    for file in ("docs/letter.txt", "sparks/offsets/0"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    before = everything(tmp_path)
    for execute in (False, True):
        with pytest.raises(ConfigError, match=f"--checkpoint .*{given} {says}.*or a new folder in which the next one"):
            adopt(NOWHERE, group="g", output=table, checkpoint=tmp_path / given, execute=execute)
    assert [one for one in everything(tmp_path) if not one.startswith(".b.staging")] == before


def test_the_checkpoint_of_the_table_and_a_new_folder_are_allowed(tmp_path: Path) -> None:
    begun(tmp_path / "a")
    table, table_id = LocalLocation(tmp_path / "a"), (tmp_path / "a-checkpoint" / "odradek-table").read_text().strip()
    (tmp_path / "new").mkdir()
    for name in ("a-checkpoint", "new", "missing"):
        check_own_checkpoint(LocalLocation(tmp_path / name), table, table_id)
    inside = table.child("_odradek").child("checkpoint")
    inside.make()
    inside.write_text("metadata", "{}")  # of another query: an adoption gives it another name
    check_own_checkpoint(inside, table, table_id)
