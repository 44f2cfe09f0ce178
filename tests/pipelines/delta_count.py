"""A separate process on Spark 4.2 with delta-spark: prints the numbers of rows and of different records of a table."""

import sys

from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.jars", sys.argv[2])
builder = builder.config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
rows = builder.getOrCreate().read.format("delta").load(sys.argv[1])
print(rows.count(), rows.select("topic", "partition", "offset").distinct().count(), flush=True)
