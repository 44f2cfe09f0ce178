"""The cause of a failed Spark job in one line. The texts are those of PySpark 4.3 with fewer stack lines."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from odradek.pipelines.failure_causes import cause_of
from odradek.pipelines.queries import QueryFailed, spark_failures

STREAM = (
    "[STREAM_FAILED] Query [id = 7431b185, runId = bd9da778] terminated with exception: "
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. "
    "Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
    '  File "/x/py4j/clientserver.py", line 661, in _call_proxy\n'
    "    return_value = getattr(self.pool[obj_id], method)(*params)\n"
    "                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
)
CAPTURED = f"{STREAM}pyspark.errors.exceptions.captured."
END = (
    "\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 7431b185]\n"
    "Current Committed Offsets: {}\norg.example.Nothing: of the plan\n"
)
DISK_FULL = """\
An error occurred while calling o45.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/small/t. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:867)
Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close resource
\tat org.apache.parquet.util.AutoCloseables.uncheckedClose(AutoCloseables.java:88)
\t... 1 more
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t... 29 more
\tSuppressed: org.apache.hadoop.fs.FSError: java.io.IOException: a second one
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 43 more
"""
NO_FOLDER = """\
An error occurred while calling o399.parquet.
: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/tmp/afile
\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:892)
"""
WORKER = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/worker.py", line 2845, in read_udfs
    raise ValueError("odd value")
{last}
"""
WORKER_IN_JAVA = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/jobs.py", line 3, in odd
odradek.pipelines.files.staging.FilesNotSeen: t/part-0.parquet: the worker on h wrote 5 rows

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""
CRASHED = """\
An error occurred while calling o1.x.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0 in stage 1.0 (TID 1)
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:624)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
"""
ZERO = "[DIVIDE_BY_ZERO] Division by zero."
FULL = "java.io.IOException: No space left on device (Task failed while writing rows to file:/small/t.)"
NOT_A_FOLDER = "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/tmp/afile"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (DISK_FULL, FULL),
        (f"{STREAM}py4j.protocol.Py4JJavaError: {DISK_FULL}{END}", FULL),
        (NO_FOLDER, NOT_A_FOLDER),
        (f"{STREAM}py4j.protocol.Py4JJavaError: {NO_FOLDER}{END}", NOT_A_FOLDER),
        (WORKER.format(last="ValueError: odd value"), "ValueError: odd value"),
        (WORKER.format(last="jobs.Odd: my class"), "jobs.Odd: my class"),
        (WORKER.format(last="MemoryError"), "MemoryError"),
        (WORKER.format(last="odradek.core.errors.StorageError: t is full"), "t is full"),
        (f"{CAPTURED}PythonException: {WORKER.format(last='KeyError: 1')}{END}", "KeyError: 1"),
        (WORKER_IN_JAVA, "t/part-0.parquet: the worker on h wrote 5 rows"),
        (CRASHED, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        ("[USER_RAISED_EXCEPTION] my words SQLSTATE: P0001", "my words"),
        (f"{CAPTURED}SparkRuntimeException: [USER_RAISED_EXCEPTION] t-0: bad SQLSTATE: P0001{END}", "t-0: bad"),
        (f"{ZERO} SQLSTATE: 22012\n== SQL (line 1, position 1) ==\n1/(id-3)\n^^^", ZERO),
        (f"{CAPTURED}ArithmeticException: {ZERO}{END}", ZERO),
        ("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Boom SQLSTATE: XXKST\n=== S", "Boom"),
        (
            "Query failed\nTraceback\n  File x\nodradek.client.errors.UnknownTopic: flights is gone\n\tat org.apache…",
            "flights is gone",
        ),
        (
            "Query failed\nTraceback\n  File x\nAttributeError: no such thing\n\tat org.apache.Y\norg.apache.X: Boom\n",
            "AttributeError: no such thing",
        ),
        ("first line\nsecond", "first line"),
        ("An error occurred while calling o1.x.\n: java.io.X: Boom\n\tat y", "java.io.X: Boom"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_is_the_last_exception_of_the_text(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause


def test_the_causes_beside_a_message_of_pyspark_count() -> None:
    """PySpark's exceptions have only Java's first message as text."""
    error = RuntimeError("Job aborted.")
    error._stackTrace = (
        "org.apache.spark.SparkException: Job aborted.\n\tat x\nCaused by: java.net.ConnectException: refused"
    )
    assert cause_of(error) == "java.net.ConnectException: refused"
    error._stackTrace = "org.apache.spark.SparkException: Job aborted.\n\tat x"
    assert cause_of(error) == "Job aborted."


def test_two_runs_with_one_checkpoint_are_named() -> None:
    """Before, the line was Spark's own: it named neither the checkpoint nor a remedy."""
    said = (
        "[STREAM_FAILED] Query [id = 7431b185, runId = bd9da778] terminated with exception: "
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 1.\n"
        "Please make sure only one streaming job runs on a specific checkpoint location at a time. SQLSTATE: 40000"
    )
    assert cause_of(ValueError(f"{said}{END}")) == (
        "another run has written micro-batch 1 to the checkpoint at the same time. Let only one run use a checkpoint, "
        "and run the command again when the other one has ended"
    )


BUSY = "Let only one run use a checkpoint, and run the command again when the other one has ended"


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("metadata", f"another run has just begun the checkpoint file:/a b/checkpoint. {BUSY}"),
        ("offsets/12", f"another run has written micro-batch 12 to the checkpoint at the same time. {BUSY}"),
        ("commits/1", f"another run has written micro-batch 1 to the checkpoint at the same time. {BUSY}"),
        (
            "commits/.1.crc",
            "file:/a b/checkpoint/commits/.1.crc is the checksum of an earlier file, which was lost or deleted without "
            "it. Delete this checksum, and run the command again",
        ),
    ],
)
@pytest.mark.parametrize("rename", ["rename", "Rename"])
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_file_of_the_checkpoint_that_is_there_already(file: str, cause: str, rename: str, is_stream: bool) -> None:
    """Before, the line was Java's: FileAlreadyExistsException and a path. Each text is one of Hadoop's."""
    java = f"org.apache.hadoop.fs.FileAlreadyExistsException: {rename} destination file:/a b/checkpoint/{file} already"
    begin = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: " if is_stream else ""
    error = ValueError(f"An error occurred while calling o1.start.\n: {java} exists.\n\tat org.apache.x(y.java:1){END}")
    quoted = ValueError(f"{begin}{java.partition('Exception: ')[2]} exists.{END}")
    quoted._stackTrace = f"{java} exists.\n\tat org.apache.x(y.java:1)"  # type: ignore[attr-defined]
    assert cause_of(quoted if is_stream else error) == cause


def test_files_of_a_table_that_are_there_already_keep_their_line() -> None:
    java = "org.apache.hadoop.fs.FileAlreadyExistsException: rename destination file:/t/part-0.parquet already exists"
    assert cause_of(ValueError(f"An error occurred while calling o1.x.\n: {java}\n\tat y")) == java


@pytest.mark.parametrize("name", ["offsets", "commits/3", "sources/0/0"])
def test_a_checkpoint_that_was_removed_meanwhile_has_a_remedy(name: str) -> None:
    with (
        pytest.raises(
            QueryFailed, match="does not exist: the folder was removed or replaced while the run was writing"
        ),
        spark_failures("the Spark query stopped"),
    ):
        raise OSError(f"File file:/lake/t/_odradek/checkpoint/{name} does not exist")
    with pytest.raises(QueryFailed, match=r"does not exist$"), spark_failures("the Spark query stopped"):
        raise OSError("File file:/lake/schema.json does not exist")


def test_a_check_of_spark_without_a_text_names_the_other_run() -> None:
    """A run that was paused at its start went on after another one had used the checkpoint. Before, the line ended with
    "assertion failed"."""
    error = StreamingQueryException("assertion failed")
    error._stackTrace = (
        "java.lang.AssertionError: assertion failed\n\tat scala.Predef$.assert(Predef.scala:264)\n"
        "\tat org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution.populateStartOffsets(M.scala:9)\n"
    )
    assert "another run used it at the same time. Let only one run use a checkpoint" in cause_of(error)
    error._stackTrace = "java.lang.AssertionError: assertion failed\n\tat org.example.Udf.call(Udf.java:1)\n"
    assert cause_of(error) == "assertion failed"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("java.io.IOException: Stream closed", "Stream closed: a Python process of Spark has ended.*again$"),
        ("java.io.IOException: No space left on device", r"the disk of the checkpoint.*Make room, and run .* again$"),
        ("INVALID_TIMESTAMP: t-0: timestamp 9 of record 0 is outside of [1, 2]", "clock of this machine differs from"),
    ],
)
def test_a_cause_without_a_place_names_what_helps(said: str, remedy: str) -> None:
    """Before, the line ended with the words of Java."""
    with pytest.raises(QueryFailed, match=remedy), spark_failures("the Spark query stopped"):
        raise StreamingQueryException(said)
