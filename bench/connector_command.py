"""A table from a topic with Spark's own connector: the counterpart of ``odradek pipeline ingest``.

``python connector_command.py BOOTSTRAP TOPIC TABLE CHECKPOINT [NAME=VALUE …]``: NAME=VALUE is a setting of Spark.
"""

import sys

from pyspark.sql import SparkSession

bootstrap, topic, table, checkpoint, *settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").appName("connector")
for name, _, value in (setting.partition("=") for setting in settings):
    builder = builder.config(name, value)
spark = builder.getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
records = spark.readStream.format("kafka").options(**options).load()
rows = records.select("topic", "partition", "offset", "timestamp", "key", "value")
writer = rows.writeStream.format("parquet").option("path", table).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
spark.stop()
