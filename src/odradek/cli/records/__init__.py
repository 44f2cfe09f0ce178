"""The forms of records in files and lines that ``odradek consume`` and ``odradek produce`` share."""
