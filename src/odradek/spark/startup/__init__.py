"""The start of a Spark session: its Java, folders, properties and the archive of classes."""
