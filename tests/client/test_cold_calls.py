"""Calls of Python that compile kernels say so before they compile the first one, without any setting of logging."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import RunningBroker
from support.programs import run_python

from odradek import Admin, Producer, TopicPartition

BEGIN = """
import logging, os, sys, time
from pathlib import Path

bootstrap, topic, cache = sys.argv[1:]

class FirstLine(logging.Handler):
    def emit(self, record):
        count = len(list(Path(cache).rglob("*.nbc")))
        print(record.levelname, count, round(time.process_time() - began, 2), record.getMessage(), flush=True)
        os._exit(0)

logging.getLogger("odradek.kernels").addHandler(FirstLine())
began = time.process_time()
"""
CALLS = {
    "poll": """
from odradek import Consumer, TopicPartition
with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
    consumer.assign([TopicPartition(topic, 0)])
    for _ in range(10_000):
        consumer.poll(1).table()
""",
    "loop": """
from odradek import Consumer, TopicPartition
with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
    consumer.assign([TopicPartition(topic, 0)])
    while True:
        consumer.seek_to_beginning()
        for _ in range(100):
            consumer.poll(1).table()
""",
    "asyncio": """
import asyncio
from odradek import TopicPartition, aio
async def read():
    async with aio.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        for _ in range(10_000):
            (await consumer.poll(1)).table()
asyncio.run(read())
""",
    "read_table": """
import odradek
while True:
    odradek.read_table(topic, bootstrap)
""",
    "reader": """
from odradek import TopicPartition
from odradek.client.config import as_config
from odradek.client.reader import PartitionReader
while True:
    for _ in PartitionReader(as_config(bootstrap), TopicPartition(topic, 0)).read(0, 1_000):
        pass
""",
    "analyse_offset_history": """
from odradek.history.analysis import analyse_offset_history
analyse_offset_history(bootstrap)
""",
    "send_batch": """
import pyarrow as pa
from odradek import Producer
with Producer(bootstrap) as producer:
    producer.send_batch(topic, pa.RecordBatch.from_pydict({"value": [b"a"] * 1_000}))
""",
    "read_offset_history": """
from odradek.history import read_offset_history
read_offset_history(bootstrap)
""",
    "monitor": """
from odradek.client.config import as_config
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions
OffsetsTopicReader(as_config(bootstrap), GroupTracker(VerdictRules()), ReaderOptions()).step()
""",
    "decoder": """
from odradek.pipelines.decoders import json_columns
""",
}


@pytest.fixture
def filled(broker: RunningBroker, topic: str, group: str) -> str:
    """A topic with 4 MB, and a group with a commit."""
    with Producer(broker.bootstrap) as producer:
        for _ in range(1_000):
            producer.send(topic, os.urandom(4_000), partition=0)
    with Admin(broker.bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 7})
    return topic


@pytest.mark.parametrize("call", CALLS)
def test_the_line_comes_before_the_first_kernel(call: str, broker: RunningBroker, filled: str, tmp_path: Path) -> None:
    """``filled`` is a topic, ``tmp_path`` an empty cache. The program ends at the line: no kernel is compiled."""
    arguments = [broker.bootstrap, filled, str(tmp_path)]
    program = f"import sys; sys.argv[1:] = {arguments!r}\n{BEGIN}{CALLS[call]}"
    level, kernels, _, said = run_python(program, NUMBA_CACHE_DIR=str(tmp_path)).split(maxsplit=3)
    assert (level, kernels) == ("WARNING", "0")
    assert said.startswith(
        (
            "numba compiles kernels, which takes seconds",
            "compiling the kernels that decode records",
            "numba and the kernels that decode records take more than a second to load",  # before: on a busy machine
        )
    )


def test_a_program_without_logging_shows_the_line_on_stderr(broker: RunningBroker, filled: str, tmp_path: Path) -> None:
    program = f"import sys; sys.argv[1:] = {[broker.bootstrap, filled, '']!r}\nbootstrap = sys.argv[1]\n"
    program += CALLS["read_offset_history"]
    line = [sys.executable, "-c", program]
    with subprocess.Popen(
        line, stderr=subprocess.PIPE, text=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    ) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        running.kill()
    assert said.startswith("numba compiles kernels, which takes seconds (once; ")
