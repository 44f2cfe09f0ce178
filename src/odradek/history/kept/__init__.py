"""A history of offsets in a folder, which a monitor writes: records of the offsets topic, and log ends at its polls."""
