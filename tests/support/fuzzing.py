"""Shared code of the fuzz tests: a seeded mutator, a time limit for each input, and the memory of the process."""

from __future__ import annotations

import ctypes
import gc
import random
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HANG_S = 20
"""Real time for up to 100 inputs, after which the current input is interrupted."""
LIMIT_S = 1.0
"""CPU time an input may take."""
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
VARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x00", b"\xff" * 11)


class Mutator:
    """Damages bytes in ways that find bugs in parsers. The same seed causes the same damage."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._ways = (self._flip, self._byte, self._integer, self._varint, self._cut, self._repeat, self._insert)

    def damaged(self, data: bytes, others: Sequence[bytes] = ()) -> bytes:
        """``data`` after one to four changes; sometimes its end is first replaced by the end of one of ``others``."""
        out = bytearray(data)
        if others and self.dice.random() < 0.05:
            other = self.dice.choice(others)
            out = out[: self.dice.randint(0, len(out))] + other[self.dice.randint(0, len(other)) :]
        for _ in range(self.dice.choice((1, 1, 1, 2, 2, 3, 4))):
            if out:
                self.dice.choice(self._ways)(out)
        return bytes(out)

    def _flip(self, out: bytearray) -> None:
        out[self.dice.randrange(len(out))] ^= 1 << self.dice.randrange(8)

    def _byte(self, out: bytearray) -> None:
        out[self.dice.randrange(len(out))] = self.dice.choice((0, 1, 0x7F, 0x80, 0xFF, self.dice.randrange(256)))

    def _integer(self, out: bytearray) -> None:
        size = self.dice.choice((1, 2, 4, 8))
        at = self.dice.randrange(len(out))
        value = self.dice.choice(EDGES) + self.dice.choice((-1, 0, 0, 1))
        packed = struct.pack(">q", min(max(value, -(1 << 63)), (1 << 63) - 1))[-size:]
        out[at : at + size] = packed

    def _varint(self, out: bytearray) -> None:
        at = self.dice.randrange(len(out))
        out[at : at + 1] = self.dice.choice(VARINTS)

    def _cut(self, out: bytearray) -> None:
        at = self.dice.randrange(len(out))
        end = len(out) if self.dice.random() < 0.3 else at + self.dice.randint(1, 16)
        del out[at:end]

    def _repeat(self, out: bytearray) -> None:
        at = self.dice.randrange(len(out))
        piece = out[at : at + self.dice.randint(1, 32)]
        out[at:at] = piece * self.dice.choice((1, 2, 50))

    def _insert(self, out: bytearray) -> None:
        at = self.dice.randrange(len(out) + 1)
        out[at:at] = self.dice.randbytes(self.dice.randint(1, 12))


class InputTimeout(BaseException):
    """An input took too long. This class is not an ``Exception``, so that no handler catches it."""


@contextmanager
def watched() -> Iterator[Watch]:
    """Within this context, ``Watch.begin`` and ``Watch.end`` limit the time of each input. Only for the main thread."""
    watch = Watch()
    before = signal.signal(signal.SIGALRM, watch.interrupt)
    try:
        yield watch
    except BaseException as error:
        error.add_note(f"input {watch.number}: {watch.data.hex()}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Watch:
    """The current input, for the report, and its CPU time."""

    def __init__(self) -> None:
        self.number = 0
        self.data = b""
        self.slowest_s = 0.0
        self._begun = 0.0
        self._armed_at = 0

    def begin(self, data: bytes) -> None:
        self.number += 1
        self.data = data
        # a system call for each input would take a tenth of the time
        if self.number - self._armed_at >= 100 or self.number == 1:
            signal.setitimer(signal.ITIMER_REAL, HANG_S)
            self._armed_at = self.number
        self._begun = time.process_time()

    def end(self) -> None:
        took_s = time.process_time() - self._begun
        if took_s > self.slowest_s:
            self.slowest_s = took_s
            assert took_s < LIMIT_S, f"one input took {took_s:.2f} s"

    def interrupt(self, *_: object) -> None:
        raise InputTimeout(f"input {self.number} hangs: {self.data.hex()}")


def resident_mib() -> float:
    """The memory of this process in MiB, after a garbage collection and a trim of free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
