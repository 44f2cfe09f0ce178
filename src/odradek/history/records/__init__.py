"""The records of ``__consumer_offsets``, decoded into Arrow columns, and the journal that the analysis reads."""
