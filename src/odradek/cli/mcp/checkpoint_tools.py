"""The tool that compares the checkpoint of a Spark query with the committed offsets of a group."""

from __future__ import annotations

from pathlib import Path

from odradek.monitor.agents.tools import Json, Parameter, Tool, ToolRefused
from odradek.monitor.view_sources import ViewSource
from odradek.pipelines.checkpoint import NO_BATCH, newest_batch
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.text.similar_names import nearest


def checkpoint_tools(root: Path, source: ViewSource) -> tuple[Tool, ...]:
    """``root``: the folder outside of which no checkpoint is read."""
    checkpoints = _Checkpoints(root, source)
    return (
        Tool(
            "compare_checkpoint", "Checkpoint against group",
            "Compares the offsets after the newest micro-batch in a Spark checkpoint with the committed offsets of a "
            "group. A restarted query goes on at the checkpoint, whatever the group says.",
            checkpoints.compare_checkpoint,
            (
                Parameter("checkpoint", "string", "the path of the checkpoint, below the folder of checkpoints"),
                Parameter("group", "string", "the name of the group"),
            ),
        ),
    )  # fmt: skip


class _Checkpoints:
    def __init__(self, root: Path, source: ViewSource) -> None:
        self._root, self._source = root.resolve(), source

    def compare_checkpoint(self, checkpoint: str, group: str) -> Json:
        folder = self._folder(checkpoint)
        newest = newest_batch(LocalLocation(folder))
        if newest.batch == NO_BATCH:
            raise ToolRefused(f"checkpoint: {checkpoint} has no micro-batch yet")
        found = self._source.group(group)
        if found is None:
            raise ToolRefused(f"group: there is no group {group!r}: list_groups has the names")
        committed = {(row["topic"], row["partition"]): row["committed_offset"] for row in found["partitions"]}
        planned = {(tp.topic, tp.partition): offset for tp, offset in newest.end.positions.items()}
        rows = [
            {
                "topic": topic, "partition": partition,
                "checkpoint_offset": planned.get((topic, partition)),
                "committed_offset": committed.get((topic, partition)),
            }
            for topic, partition in sorted(planned.keys() | committed.keys())
        ]  # fmt: skip
        differing = [row for row in rows if row["checkpoint_offset"] != row["committed_offset"]]
        return {
            "newest_batch": newest.batch,
            "is_batch_done": (folder / "commits" / str(newest.batch)).exists(),
            "differing_partitions": len(differing),
            "partitions": rows,
        }

    def _folder(self, checkpoint: str) -> Path:
        folder = (self._root / checkpoint).resolve()
        if not folder.is_relative_to(self._root):
            raise ToolRefused(f"checkpoint: {checkpoint!r} is outside of the folder of checkpoints")
        if not (folder / "offsets").is_dir():
            names = [str(path.parent.relative_to(self._root)) for path in sorted(self._root.glob("*/offsets"))[:1_000]]
            raise ToolRefused(
                f"checkpoint: {checkpoint!r} is no checkpoint{nearest(checkpoint, names)}: there are "
                f"{', '.join(names[:20]) or 'none'}"
            )
        return folder
