"""No poll waits for numba: plain Python decodes the first records, while kernels are compiled and loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import RunningBroker
from support.programs import run_python

from odradek import Producer
from odradek.batches.kernels.kernel_loader import WORTH_LOADING_BYTES

SIZE, COUNT = 1_000, 3 * WORTH_LOADING_BYTES // 1_000

FIRST_POLL = """
import sys, threading
from odradek import Consumer, TopicPartition
from odradek.batches.kernels import kernel_loader
from odradek.batches.columns.arrow_rows import PlainRecordSet
from odradek.batches.record_sets import record_set

may_compile, compilers = threading.Event(), []

def compile_later(lock, run=kernel_loader.run_compiler):
    may_compile.wait()
    compilers.append(run(lock))
    return compilers[-1]

kernel_loader.run_compiler = compile_later
tp = TopicPartition(sys.argv[2], 0)

def read_all(consumer):
    consumer.seek(tp, 0)
    values = []
    while len(values) < int(sys.argv[3]):
        values += consumer.poll(20).table().column("value").to_pylist()
    return values

with Consumer(sys.argv[1], max_poll_records=100) as consumer:
    consumer.assign([tp])
    consumer.seek_to_beginning()
    assert consumer.poll(20).table().num_rows == 100
    before = read_all(consumer)
    assert record_set() is PlainRecordSet
    assert kernel_loader._loader._thread is not None
    may_compile.set()
    assert kernel_loader.wait_for_kernels()
    from odradek.batches import arrow
    from odradek.batches.kernels import kernel_cache
    assert record_set() is arrow.RecordSet
    assert read_all(consumer) == before
print(compilers, kernel_cache.compiled)
"""


@pytest.fixture
def filled(broker: RunningBroker, topic: str) -> str:
    with Producer(broker.bootstrap, compression_type="zstd") as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d " % number + b"x" * SIZE, partition=0)
    return topic


@pytest.mark.slow
def test_polls_return_records_while_another_process_compiles(
    broker: RunningBroker, filled: str, tmp_path: Path
) -> None:
    """The process that polls compiles no kernel. It loads the kernels that the other process has compiled."""
    done = run_program(FIRST_POLL, tmp_path, broker.bootstrap, filled, str(COUNT))
    assert done == "[True] []"
    assert any(tmp_path.rglob("*record_columns*.nbc"))


def run_program(program: str, cache: Path, *arguments: str) -> str:
    return run_python(f"import sys; sys.argv[1:] = {list(arguments)!r}\n{program}", NUMBA_CACHE_DIR=str(cache))


def test_a_few_records_do_not_load_numba() -> None:
    program = """
import sys
from odradek.batches.encode import encode_batch
from odradek.batches.record_sets import record_set
from odradek.core.effects import SimpleRecord

data = encode_batch([SimpleRecord(b"k", b"v")] * 1_000, now_ms=1)
(found,) = record_set()(data).record_batches("t", 3)
print(found.num_rows, "numba" in sys.modules)
"""
    assert run_python(program) == "1000 False"


def test_without_numba_columns_are_decoded_in_plain_python() -> None:
    program = """
import logging, sys
sys.modules["numba"] = None
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
from odradek.batches.encode import encode_batch
from odradek.batches.kernels.kernel_loader import load_cached, wait_for_kernels
from odradek.batches.record_sets import record_set
from odradek.core.effects import SimpleRecord

assert not load_cached() and not wait_for_kernels()
(found,) = record_set()(encode_batch([SimpleRecord(b"k", b"v")], now_ms=1)).record_batches("t", 3)
print(found.column("value").to_pylist())
"""
    lines = run_python(program).splitlines()
    assert lines[-1] == "[b'v']"
    assert lines[0].startswith("records are decoded in plain Python: ")


def test_a_fork_waits_for_the_import_in_the_loader_s_thread() -> None:
    """The loader's thread imports numba. If the process forked meanwhile, the child could never complete the import."""
    program = """
import os, sys, time
from odradek.batches.kernels import kernel_loader

kernel_loader._loader.begin()
while "numba" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if not child:
    os._exit(0 if kernel_loader.wait_for_kernels(30) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), kernel_loader.wait_for_kernels())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "True"]


def test_the_end_of_a_process_waits_for_the_import_in_the_loader_s_thread() -> None:
    program = """
import atexit, sys, time
atexit.register(lambda: print(kernel_loader._loader.importing.locked()))
from odradek.batches.kernels import kernel_loader

kernel_loader._loader.begin()
while "numba" not in sys.modules:
    time.sleep(0.001)
"""
    assert run_python(program) == "False"


STORM = """
import sys
from odradek.batches.kernels import kernel_loader

started = []

def counted(lock, run=kernel_loader.run_compiler):
    started.append(run(lock))
    return started[-1]

kernel_loader.run_compiler = counted
assert kernel_loader.wait_for_kernels()
from odradek.batches.kernels import kernel_cache
print(len(started), len(kernel_cache.compiled))
"""


@pytest.mark.slow
def test_one_of_several_processes_compiles(tmp_path: Path) -> None:
    from os import environ

    (tmp_path / "tmp").mkdir()
    own = environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    running = [
        subprocess.Popen([sys.executable, "-c", STORM], env=own, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    counts = [tuple(map(int, one.communicate(timeout=300)[0].split())) for one in running]
    assert sorted(counts) == [(0, 0), (0, 0), (0, 0), (1, 0)]


@pytest.mark.slow
def test_an_application_without_an_interpreter_of_its_own_compiles_in_its_thread(tmp_path: Path) -> None:
    program = "import sys; sys.executable = '/usr/bin/application'\n" + STORM
    started, compiled = run_program(program, tmp_path).split()
    assert started == "1"
    assert int(compiled) > 10
