"""When a query uses a feature that an older PySpark lacks, the error names the feature. Other queries run."""

from __future__ import annotations

from support.programs import run_python

PROGRAM = """
import sys
import pyspark
import pyspark.sql.datasource as datasource

version = {version!r}
pyspark.__version__ = version + ".9"
sys.modules["pyspark.sql.streaming.datasource"] = None  # PySpark before 4.2
if version == "4.0":
    for name in [*datasource.Filter.__subclasses__(), datasource.DataSourceStreamArrowWriter]:
        delattr(datasource, name.__name__)
    del datasource.Filter, datasource.DataSourceReader.pushFilters

from odradek.core.errors import ConfigError
from odradek.spark.offsets_source import OffsetsDataSource
from odradek.spark.source import OdradekDataSource
from odradek.spark import transactional_writer
from odradek.spark.writes.sink import OdradekWriter

read = {{"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}}
rows, written = OdradekDataSource(read).schema(), {{"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}}

def asked(kind, make, **options):
    source = kind(read | options)
    try:
        make(source)
    except ConfigError as error:
        return str(error)
    return "made"

def stream(source):
    return source.streamReader(source.schema())

reader = OdradekDataSource(read).reader(rows)
print(getattr(reader, "pushFilters").__func__)
print(asked(OdradekDataSource, stream))
for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
    print(asked(OdradekDataSource, stream, **{{name: "5"}}))
print(asked(OdradekDataSource, stream, maxBytesPerTrigger="5m"))
print(asked(OdradekDataSource, lambda source: source.reader(rows), pushFilters="true"))
print(type(OdradekDataSource(written).writer(rows, False)).__name__)
try:
    print(type(OdradekDataSource(written).streamWriter(rows, False)).__name__)
except ConfigError as error:
    print(error)
try:
    print(type(transactional_writer("127.0.0.1:9", "t")).__name__)
except ConfigError as error:
    print(error)
"""


def test_pyspark_4_1_has_no_limits_and_no_transactional_writer() -> None:
    lines = run_python(PROGRAM.format(version="4.1")).splitlines()
    needed = "this needs PySpark 4.2 or newer, and PySpark 4.1.9 is installed"
    assert lines[1:] == [
        "made",
        f"option maxOffsetsPerTrigger: {needed}",
        f"option minOffsetsPerTrigger: {needed}",
        f"option maxBytesPerTrigger: {needed}",
        "made",
        "OdradekWriter",
        "OdradekStreamWriter",
        f"transactional_writer: {needed}",
    ]


def test_pyspark_4_0_has_no_limits_no_pushdown_no_writes_of_streams_and_no_transactional_writer() -> None:
    lines = run_python(PROGRAM.format(version="4.0")).splitlines()
    needed = "this needs PySpark 4.1 or newer, and PySpark 4.0.9 is installed"
    assert lines[0] == "None"
    assert lines[1] == "made"
    assert all("needs PySpark 4.2" in line for line in lines[2:5])
    assert lines[5:8] == [f"option pushFilters: {needed}", "OdradekWriter", f"writing a stream: {needed}"]
    assert lines[8:] == ["transactional_writer: this needs PySpark 4.2 or newer, and PySpark 4.0.9 is installed"]
