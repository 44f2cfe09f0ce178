"""The files of tables: how Spark's workers write them, where, and what is read of them before they are added."""
