"""The decorator of all numba kernels, which are compiled once per computer, and the cache of their compiled code.

numba stores the code of a kernel together with the code of the functions that it calls and the constants that it uses.
numba compiles a stored kernel again only when the kernel's own file changes. So after an upgrade a kernel would run
with the former code of a function from another file. This cache also compiles a kernel again when such code or such a
constant changes.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.caching import FunctionCache

from odradek.batches.kernels.compile_lock import CompileLock, private_directory
from odradek.batches.kernels.kernel_loader import COMPILING

logger = logging.getLogger("odradek.kernels")

# The types in the signatures of kernels. ``kernel_arrays`` has the types of the same values in Python.
INT64 = types.int64
INT64S = types.int64[::1]
INT32S = types.int32[::1]
UINT8S = types.uint8[::1]
READ_ONLY = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes that a kernel reads. Writable arrays are accepted, too: without a signature numba would compile a kernel again,
for seconds, for each mix of writable and readonly arrays."""
TABLE = types.int64[:, ::1]
"""Rows of numbers, such as the batches of ``decode.scan``."""

compiled: list[str] = []
"""The names of the kernels that this process has compiled."""


class KernelMissing(Exception):
    """This thread must not compile a kernel that is not in the cache, or ``gives_up`` (see ``loading``) was true."""


class _Loading(threading.local):
    """How this thread gets kernels."""

    def __init__(self) -> None:
        self.cached_only = self.must_keep = self.has_lock = False
        self.gives_up: Callable[[], bool] = lambda: False


_loading = _Loading()


@contextmanager
def loading(
    *,
    cached_only: bool = False,
    must_keep: bool = False,
    has_lock: bool = False,
    gives_up: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Sets how this thread gets kernels in this block. An import raises KernelMissing if an option stops the import.

    ``cached_only``: imports never compile. ``must_keep``: imports compile only what a cache keeps. ``gives_up``: called
    before each kernel; True stops the import. ``has_lock``: another process holds the compile lock for this one.
    """
    before = vars(_loading).copy()
    vars(_loading).update(cached_only=cached_only, must_keep=must_keep, has_lock=has_lock, gives_up=gives_up)
    try:
        yield
    finally:
        vars(_loading).update(before)


def is_off() -> bool:
    """Whether the environment variable NUMBA_DISABLE_JIT turns compilation off."""
    return bool(numba.config.DISABLE_JIT)


class _KernelCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """numba's cache for one kernel. It is private in numba; the tests show that it still works as assumed here."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        stored = self._cache_file
        self.lock = CompileLock(_hash(stored._index_path.encode())[:16])
        stored._source_stamp = (stored._source_stamp, _digest(function))

    def load_overload(self, sig: object, target_context: object) -> object:
        """Returns the kernel from the cache, or None, after which numba compiles the kernel.

        Before it returns None, it acquires the compile lock, unless another process holds the lock for this one. Raises
        KernelMissing if the kernel is not in the cache and must not be compiled."""
        loaded = super().load_overload(sig, target_context)
        if loaded is not None:
            return loaded
        if _loading.cached_only:
            raise KernelMissing(self._name)
        if not _loading.has_lock:
            self.lock.acquire()
            loaded = super().load_overload(sig, target_context)  # another process may have compiled it meanwhile
        if loaded is None:
            _note_compilation(self.cache_path)
            compiled.append(self._name)
        return loaded


def kernel(signature: object, *, nogil: bool = True) -> Callable[[Any], Any]:
    """Does the same as ``numba.njit`` with one signature, cached on disk if possible.

    ``nogil=False`` is for kernels of a microsecond: after a release of the GIL, a thread can wait a hundred
    microseconds to get it again.
    """

    def wrap(function: Any) -> object:
        made = numba.njit(nogil=nogil)(function)
        if made is function:  # NUMBA_DISABLE_JIT
            return made
        if _loading.gives_up():
            raise KernelMissing(function.__name__)
        cache = _cache_of(function)
        if cache is None:
            if _loading.cached_only or _loading.must_keep:
                raise KernelMissing(function.__name__)
            _note_compilation(None)
            compiled.append(function.__name__)
        else:
            made._cache = cache
        try:
            made.compile(signature)
        finally:
            if cache is not None:
                cache.lock.release()
        made.disable_compile()
        return made

    return wrap


def _cache_of(function: Any) -> _KernelCache | None:
    """Returns the cache beside the kernel's file, in the user's cache directory or in a private one.

    Returns None if no directory can keep a cache."""
    try:
        return _KernelCache(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
    private = private_directory()
    if private is None:
        return None
    numba.config.CACHE_DIR = private
    return _KernelCache(function)


def _note_compilation(directory: str | None) -> None:
    """Logs that numba compiles, before the first kernel; once more if no directory keeps kernels."""
    if (is_kept := directory is not None) in _noted:
        return
    _noted.add(is_kept)
    kept = f"once; {directory} keeps the code" if is_kept else "no directory can keep it: each process compiles"
    logger.warning("%s, which takes seconds (%s)", COMPILING[1], kept)


_noted: set[bool] = set()


# --- the globals of a kernel ------------------------------------------------------------------------------------------


@functools.cache
def _digest(function: FunctionType) -> str:
    """Returns a digest of the globals that a function names: functions with all that they name, and values of
    constants."""
    named = function.__globals__
    names = sorted((_names(function.__code__) & named.keys()) - {function.__name__})
    return _hash(repr([(name, _described(named[name])) for name in names]).encode())


def _names(code: CodeType) -> set[str]:
    """Returns the names in a code object and in those inside it. The names of attributes among them do no harm."""
    inside = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inside)


def _described(value: object) -> object:
    """Returns an object whose ``repr`` changes with the value and is the same in each process."""
    function = _python_function(value)
    if function is not None:
        source = _file_digest(inspect.getfile(function), function.__globals__["__loader__"])
        return (source, _digest(function), [str(one) for one in getattr(value, "signatures", ())])
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, _hash(value.tobytes()))
    if isinstance(value, ModuleType):
        return value.__name__
    return repr(value)


def _python_function(value: object) -> FunctionType | None:
    """Returns the Python function of a kernel or an intrinsic, a plain function as it is, and None for other values."""
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    return function if isinstance(function, FunctionType) else None


@functools.cache
def _file_digest(path: str, loader: Any) -> str:
    return _hash(loader.get_data(path))


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()
