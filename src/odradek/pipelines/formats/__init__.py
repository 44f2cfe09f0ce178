"""Formats of tables: what each one gives (``table_format``), the tables that it opens (``table_sink``), and what all
of them have: a target, a description in the table's folder, a check of the store."""
