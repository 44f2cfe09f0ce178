"""Formats of tables: what each one gives (``table_format``), the tables that it opens (``format_table``), and what all
of them have: a target, a description in the table's folder, a check of the store."""
