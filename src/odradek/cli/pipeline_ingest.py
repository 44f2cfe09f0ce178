"""``odradek pipeline ingest``: options to a job, a bar while it runs, and what it came to."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from odradek.cli.options import named_values
from odradek.cli.pipeline_options import IngestOptions, check_pyspark, names
from odradek.cli.terminal import EXIT_OK, CommandError, note, progress, waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.pipelines.ingesting import Ingest, Ingested
    from odradek.pipelines.lake import Added

T = TypeVar("T")


def run_ingest_command(asked: IngestOptions) -> int:
    """Returns the exit code. Raises OdradekError."""
    check_pyspark()
    job = _job(asked)
    stop = threading.Event()
    with waiting("looking at the cluster"):
        unread = job.check()
    conf = named_values(asked.conf, "--conf")
    # Java takes Ctrl-C badly when it meets it: so it always meets the main thread, which works on nothing.
    workers = ThreadPoolExecutor(1, "pipeline")
    try:
        # One that goes on has no end to draw a bar towards: it tells of each batch.
        with progress("reading", unread if asked.trigger is None else 0, "records") as bar:

            def advance(added: Added) -> None:
                bar(added.rows)
                _tell_batch(asked, added)

            done = _finished(workers.submit(_run, job, asked.master, conf, stop, advance), stop, job)
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
    _tell(asked, done)
    return EXIT_OK


def _run(job: Ingest, master: str, conf: Mapping[str, str], stop: threading.Event, advance: Any) -> Ingested:
    from odradek.pipelines.ingesting import run_ingest, start_spark

    def get_spark() -> SparkSession:
        return start_spark(master, conf)

    return run_ingest(job, get_spark, stop, advance)


def _finished(running: Future[T], stop: threading.Event, job: Ingest) -> T:
    """What the job returns; Ctrl-C ends one that would go on for ever in good order, any other at once."""
    try:
        return running.result()
    except KeyboardInterrupt:
        if job.trigger is None:
            raise
        stop.set()
        return running.result()


def _job(asked: IngestOptions) -> Ingest:
    from odradek.pipelines.ingesting import Ingest
    from odradek.pipelines.sources import Source

    if asked.available_now and asked.trigger is not None:
        raise CommandError("--available-now ends at the present end, --trigger goes on: leave out one of them")
    own = {}
    if asked.start != "earliest":
        own["kafka.auto.offset.reset"] = asked.start
    if asked.max_offsets is not None:
        own["maxOffsetsPerTrigger"] = str(asked.max_offsets)
    topics, pattern = names(asked.topics), asked.subscribe_pattern
    source = Source(asked.bootstrap, asked.group, topics, pattern, asked.source_options(**own))
    target = asked.target(asked.output, asked.checkpoint)
    return Ingest(source, target, asked.trigger)


def _tell_batch(asked: IngestOptions, added: Added) -> None:
    if asked.trigger is None:
        return
    if asked.as_json:
        note(json.dumps({"rows": added.rows, "bad": added.bad}))
    else:
        note(f"{added.rows:,} records" + (f", {added.bad:,} unreadable" if added.bad else ""))


def _tell(asked: IngestOptions, done: Ingested) -> None:
    if asked.as_json:
        note(json.dumps({"output": asked.output, "group": asked.group, **dataclasses.asdict(done)}))
        return
    batches = "1 batch" if done.batches == 1 else f"{done.batches:,} batches"
    what = f"{done.rows:,} records in {batches}" if done.batches else "Nothing new: 0 records"
    note(f"{what} ({done.seconds:.1f} s), into {asked.output}; group {asked.group} is committed.")
    if done.bad:
        note(f"{done.bad:,} of them have a value that could not be read: see columns error and raw.")
