"""The monitor in a terminal: ``odradek top``. Only ``app`` and the modules that it imports need textual."""
