"""Uses client and tools as if the extra ``arrow`` were not installed. Usage: without_arrow_child.py BOOTSTRAP."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.abc import MetaPathFinder
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from odradek.core.extras import command_of

MISSING = frozenset({"pyarrow", "numpy", "numba", "llvmlite", "pandas", "pyspark"})


class _Absent(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        del path, target
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Absent())

import odradek  # noqa: E402  # after the packages are hidden
import odradek.aio  # noqa: E402
from odradek.batches.row_sets import ColumnsMissing  # noqa: E402
from odradek.cli.main import run  # noqa: E402
from odradek.client import read_range  # noqa: E402

COUNT = 3_000


def produce(bootstrap: str) -> None:
    for codec in ("none", "zstd"):
        with odradek.Producer(bootstrap, compression_type=codec) as producer:
            for number in range(COUNT // 2):
                value = None if number % 7 == 0 else b"%s-%d" % (codec.encode(), number)
                producer.send("light", value, b"k%d" % number, [("h", b"%d" % number)], timestamp=1_000 + number)
            refused(lambda: producer.send_batch("light", object()))


def consume(bootstrap: str) -> None:
    seen: set[tuple[int, int]] = set()
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "group_id": "light", "auto_offset_reset": "earliest"}
    columns = ("key", "value", "offset", "timestamp", "timestampType", "headers")
    for part in range(2):  # the second member continues at the first one's commits
        with odradek.Consumer(settings, max_poll_records=700, columns=columns, enable_auto_commit=False) as consumer:
            consumer.subscribe(["light"])
            while len(seen) < COUNT // (2 - part):
                polled = consumer.poll(20.0)
                for record in polled.records():
                    number = int((record.key or b"k")[1:])
                    assert (record.value is None) == (number % 7 == 0)
                    assert (record.timestamp_ms, record.headers) == (1_000 + number, (("h", b"%d" % number),))
                    assert (record.partition, record.offset) not in seen
                    seen.add((record.partition, record.offset))
                assert polled.num_rows <= 700
                if polled:
                    refused(polled.table)
                    refused(lambda polled=polled: list(polled.record_batches()))
                    consumer.commit(polled.next_offsets)
    assert len(seen) == COUNT
    with odradek.Consumer(settings | {"group_id": None}) as consumer:
        consumer.assign([odradek.TopicPartition("light", 0)])
        consumer.seek(odradek.TopicPartition("light", 0), 0)
        in_order = [record.offset for record, _ in zip(consumer, range(50), strict=False)]
        assert in_order == list(range(50))
    rows = [row.offset for batch in read_range(bootstrap, ("light", 0), 5, 25) for row in batch.rows]
    assert rows == list(range(5, 25))


async def consume_async(bootstrap: str) -> None:
    async with odradek.aio.Consumer(
        bootstrap_servers=bootstrap, group_id="light-aio", auto_offset_reset="earliest"
    ) as consumer:
        await consumer.subscribe(["light"])
        count = 0
        while count < COUNT:
            count += (await consumer.poll(20.0)).num_rows


def tool(*line: str) -> str:
    out = io.StringIO()
    out.buffer = io.BytesIO()  # a command writes bytes to this buffer
    with redirect_stdout(out):
        code = run(line)
    assert code == 0, (line, code)
    return out.getvalue() + out.buffer.getvalue().decode()


def commands(bootstrap: str) -> None:
    where = ("-b", bootstrap)
    lines = Path(mkdtemp()) / "lines.jsonl"
    first = {"key": "a", "value": "1", "headers": {"x": "y"}, "timestamp": "2026-01-31T12:00:00+00:00"}
    lines.write_text(json.dumps(first) + '\n{"value": null, "partition": 0}\n')
    tool("produce", "typed", "--format", "json", "--file", str(lines), *where)
    records = [json.loads(line) for line in tool("consume", "typed", "--json", *where).splitlines()]
    assert sorted(str(record["value"]) for record in records) == ["1", "None"], records
    (found,) = (record for record in records if record["key"] == "a")
    assert found["headers"] == [{"key": "x", "value": "y"}]
    assert found["timestamp"] == "2026-01-31T12:00:00+00:00"
    assert set(tool("consume", "typed", *where).splitlines()) == {"1", "null"}
    member = ("consume", "light", "--group", "light-tool", "--max", "10", *where)
    assert len(tool(*member).splitlines()) == 10
    assert "light" in tool("groups", "describe", "--group", "light", *where)
    assert "light" in tool("topics", "list", *where)
    assert "light" in tool("offsets", "dump", "--group", "light", *where)
    csv = ["produce", "light", "--format", "csv", "--file", str(lines)]
    for line in (["consume", "light", "--output", "x.parquet"], csv):
        assert run([*line, *where]) == 2


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except ColumnsMissing as error:
        message = str(error)
    else:
        raise AssertionError("columns without pyarrow")
    assert command_of("arrow") in message


def main() -> None:
    (bootstrap,) = sys.argv[1:]
    produce(bootstrap)
    consume(bootstrap)
    asyncio.run(consume_async(bootstrap))
    commands(bootstrap)
    assert not MISSING & sys.modules.keys()
    print("done")


if __name__ == "__main__":
    main()
