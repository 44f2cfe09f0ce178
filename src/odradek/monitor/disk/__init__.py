"""What a monitor keeps in its directory (``--data``)."""
