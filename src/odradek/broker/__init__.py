"""The broker process: connections, a handler for each API, partitions, the metadata log, and the coordinators."""

import logging

from odradek.text.log_lines import escape_controls

# An application that embeds the broker formats these log records with its own handlers.
for _name in ("odradek.broker", "odradek.cleaner", "odradek.storage"):
    logging.getLogger(_name).addFilter(escape_controls)
