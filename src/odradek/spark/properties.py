"""Spark's settings on their way to Java: in files that only this user reads, since a command line is everybody's.

``ps`` shows the command line of every process to every user of a machine, and settings hold secrets (a storage's key,
a password in an option of Java's). So Java gets the name of a properties file (``--properties-file``), and the options
of the Java process itself in an argument file (``@file``). Both are read while Java starts and are then removed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from odradek.core.errors import ConfigError

JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_PROPERTIES = "spark.properties"
_FILE_OPTION, _CONF_OPTIONS = "--properties-file", ("--conf", "-c")
# Spark refuses these where it sees them: they belong into spark.driver.memory and --conf.
_NOT_JAVAS = ("Xmx", "-Dspark")


def submit_arguments(settings: Mapping[str, str], directory: Path) -> list[str]:
    """The arguments of ``spark-submit`` that give it these settings, by files in ``directory``.

    What PYSPARK_SUBMIT_ARGS says counts as with PySpark itself: ``--conf`` there wins. A properties file that it names
    is taken into ours, since Spark reads one of them only; without one Spark's own defaults hold
    (``conf/spark-defaults.conf``). Raises ConfigError for a file that cannot be read, or arguments that are none.
    """
    theirs, conf, others = _given(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    text = b""
    if theirs is not None:
        try:
            text = Path(theirs).read_bytes() + b"\n\n"  # the second one ends a line that goes on
        except OSError as error:
            raise ConfigError(f"PYSPARK_SUBMIT_ARGS: {_FILE_OPTION} {theirs}: {error.strerror}") from error
    kept = {**settings, **conf}
    for name in JAVA_OPTIONS:
        if name in kept:
            kept[name] = _by_file(kept[name], directory / name)
    file = _write(directory / _PROPERTIES, text + _java_properties(kept))
    return [_FILE_OPTION, str(file), *([] if theirs is not None else ["--load-spark-defaults"]), *others]


def remove_files(directory: Path) -> None:
    """Java has read them."""
    for name in (_PROPERTIES, *JAVA_OPTIONS):
        (directory / name).unlink(missing_ok=True)


def _given(arguments: str) -> tuple[str | None, dict[str, str], list[str]]:
    """Of arguments of ``spark-submit`` the properties file, the settings, and the others."""
    try:
        left = shlex.split(arguments)
    except ValueError as error:
        raise ConfigError(f"PYSPARK_SUBMIT_ARGS: {error}") from error
    file: str | None = None
    conf: dict[str, str] = {}
    others: list[str] = []
    while left:
        option, equals, value = left[0].partition("=")
        if option not in (_FILE_OPTION, *_CONF_OPTIONS) or (not equals and len(left) == 1):
            others.append(left.pop(0))
            continue
        del left[0]
        value = value if equals else left.pop(0)
        if option == _FILE_OPTION:
            file = value
        else:
            name, _, setting = value.partition("=")
            conf[name] = setting
    return file, conf, others


def _write(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
    return path


def _java_properties(settings: Mapping[str, str]) -> bytes:
    """As ``java.util.Properties`` reads it: ASCII, anything else as an escape."""
    return b"".join(f"{_escaped(name)}={_escaped(value)}\n".encode("ascii") for name, value in settings.items())


def _escaped(text: object) -> str:
    units = str(text).encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)


def _by_file(options: str, file: Path) -> str:
    """Options of Java's by way of an argument file. What Spark is to refuse stays as it is, and so do argument files
    among the options, since Java expands none within another."""
    try:
        given = shlex.split(options)
    except ValueError:
        return options
    if any(part in option for option in given for part in _NOT_JAVAS):
        return options
    plain = [option for option in given if not option.startswith("@")]
    files = [option for option in given if option.startswith("@")]
    if not plain:
        return options
    _write(file, "".join(map(_java_argument, plain)).encode())
    return shlex.join([f"@{file}", *files])


def _java_argument(argument: str) -> str:
    """A line of an argument file: the ``java`` command takes what stands in quotes as one argument."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"\n'
