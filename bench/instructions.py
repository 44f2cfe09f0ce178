"""Instructions per request of the broker in this revision, and in another one.

``python -m bench.instructions OTHER/src [CASE ...]``

With ``--metrics`` this revision's broker counts its requests, as with a page of metrics; OTHER/src may be ``src`` then.

A request of the two cases of transactions is a whole transaction: a record, an offset of a group, and its end.

Each case runs in a process of its own under ``valgrind --tool=callgrind``: a broker in it, and a connection whose
transport keeps the last reply. Sockets, timers and clocks take no part: the time of the event loop stands still. So
other load on the machine changes nothing. The second pair of figures has the calls of Python functions per request.

System calls and the event loop are not in these figures: ``bench.revisions`` measures the time of everything.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.revisions import TOPIC, Workload, compile_modules, package_folder, prepare, workloads
from bench.transaction_requests import NEW, OLD, TransactionRequests

_COUNT, _WARM_UP = 400, 200
_IMPORTS_S = 5.0
"""The time in which a started broker imports the rest of its modules."""
_IDLE_MS = 86_400_000
"""Longer than any case takes under valgrind on a busy machine: otherwise the broker closes the connection."""
_SOURCE = Path(__file__).resolve().parent.parent / "src"
CASES = (
    "api versions", "metadata", "produce 1 record", "produce 100 records", "fetch 1 record", "commit",
    "heartbeat", NEW, OLD,
)  # fmt: skip


class _Transport(asyncio.Transport):
    """The transport of a client that reads every reply at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.last = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.last = bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time can stand still. A commit is answered in a later tick, so the loop runs meanwhile; the
    slower the machine is, the more timers would fire and be counted."""

    stands_at: float | None = None

    def time(self) -> float:
        return super().time() if self.stands_at is None else self.stands_at


class RequestCase:
    """The requests of a workload of ``bench.revisions``, one at a time."""

    def __init__(self, bootstrap: str, case: str) -> None:
        self._workload: Workload = workloads()[case]

    def requests(self, number: int) -> Sequence[bytes]:
        return (self._workload.requests[number % len(self._workload.requests)],)

    def check(self, replies: Sequence[bytes]) -> None:
        self._workload.check(replies[-1])


class TransactionCase:
    """The requests of one transaction at a time."""

    def __init__(self, bootstrap: str, case: str) -> None:
        self._made = TransactionRequests(bootstrap, TOPIC, case, _WARM_UP + _COUNT)
        self.check = self._made.check

    def requests(self, number: int) -> Sequence[bytes]:
        return self._made.transactions[number]


def _requests_of(bootstrap: str, case: str) -> RequestCase | TransactionCase:
    return TransactionCase(bootstrap, case) if case in (NEW, OLD) else RequestCase(bootstrap, case)


async def _serve(directory: Path, case: str, *, counts_calls: bool, has_metrics: bool) -> int:
    """Serves ``_COUNT`` requests. Returns the calls of Python functions, or 0 if they are not counted.

    If they are not counted, it writes a line before and after the requests, and waits each time for a line.
    """
    from odradek.broker.front_end.connection import Connection
    from odradek.broker.server import BrokerServer
    from odradek.broker.settings.config import BrokerConfig

    config = BrokerConfig.parse(["num.partitions=100", f"connections.max.idle.ms={_IDLE_MS}"])
    broker = BrokerServer(config, directory, ("127.0.0.1", 0))
    if has_metrics:
        from odradek.broker.front_end.request_times import RequestStatistics

        broker.request_times = RequestStatistics()
    await broker.start()
    bootstrap = "{}:{}".format(*broker.address)
    await asyncio.to_thread(prepare, bootstrap)
    sent = await asyncio.to_thread(_requests_of, bootstrap, case)
    await asyncio.sleep(_IMPORTS_S)
    broker.scheduler.clock = lambda: 1.0  # a share never ends
    connection, transport = Connection(broker), _Transport()
    connection.connection_made(transport)
    replies: list[bytes] = []
    calls = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    async def send(first: int, count: int) -> None:
        for number in range(first, first + count):
            for request in sent.requests(number):
                transport.last = b""
                connection.data_received(request)
                while not transport.last:  # a commit is answered in a later tick
                    await asyncio.sleep(0)
                replies.append(transport.last[4:])

    await send(0, _WARM_UP)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    loop.stands_at = loop.time()
    if counts_calls:
        sys.setprofile(count_call)
        await send(_WARM_UP, _COUNT)
        sys.setprofile(None)
    else:
        _say("ready")
        await send(_WARM_UP, _COUNT)
        _say("done")
    loop.stands_at = None
    sent.check(replies)
    return calls


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _command(arguments: list[str], source: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the command that runs this module with the package of ``source``, and its environment."""
    variables = os.environ | {"PYTHONPATH": f"{source}:{_SOURCE.parent}", "PYTHONHASHSEED": "0"}
    return [sys.executable, "-m", "bench.instructions", "--serve", *arguments], variables


def instructions(case: str, source: Path, *options: str) -> float:
    """Returns the instructions per request. ``options``: ``metrics``."""
    command, variables = _command([case, *options], source)
    with tempfile.TemporaryDirectory() as directory:
        tool = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory}/counts"]
        counted = ["valgrind", *tool, f"--log-file={directory}/log", *command]
        with subprocess.Popen(
            counted, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for switch in ("on", "off"):
                process.stdout.readline()
                subprocess.run(["callgrind_control", "-i", switch, str(process.pid)], check=True, capture_output=True)
                process.stdin.write("\n")
                process.stdin.flush()
            process.communicate()
        lines = [line for path in Path(directory).glob("counts*") for line in path.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("totals:")) / _COUNT


def calls(case: str, source: Path, *options: str) -> float:
    """Returns the calls of Python functions per request. ``options`` as for ``instructions``."""
    command, variables = _command([case, "calls", *options], source)
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return int(done.stdout) / _COUNT


def serve(case: str, options: Sequence[str]) -> None:
    """Serves requests in this process, and prints the number of calls."""
    gc.disable()
    with tempfile.TemporaryDirectory() as directory:
        served = _serve(Path(directory), case, counts_calls="calls" in options, has_metrics="metrics" in options)
        with asyncio.Runner(loop_factory=_Loop) as runner:
            made = runner.run(served)
        sys.stdout.write(f"{made}\n")
        sys.stdout.flush()


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    parser = ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("other", metavar="OTHER/src", type=package_folder, help="the folder src of another checkout")
    parser.add_argument("cases", metavar="CASE", nargs="*", choices=[*CASES, []], help=f"default: {'; '.join(CASES)}")
    parser.add_argument("--metrics", action="store_const", const=("metrics",), default=())
    chosen = parser.parse_args()
    compile_modules(chosen.other, _SOURCE)
    for case in chosen.cases or CASES:
        there, here = instructions(case, chosen.other), instructions(case, _SOURCE, *chosen.metrics)
        line = f"{case}: {here / there:.3f}; {there:,.0f} → {here:,.0f} instructions"
        print(
            f"{line}, {calls(case, chosen.other):.1f} → {calls(case, _SOURCE, *chosen.metrics):.1f} calls", flush=True
        )


if __name__ == "__main__":
    main()
