"""Iceberg tables: their catalogues, their notes, their data files, and their commits.

Part of docs/notes/table-commits.md is about them.
"""
