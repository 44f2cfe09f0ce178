"""The broker process: sockets, one handler per API, partitions, the machines it drives."""

import logging

from odradek.core.log_lines import escape_controls

for _name in ("odradek.broker", "odradek.cleaner"):  # in an application's process, its own handlers format the records
    logging.getLogger(_name).addFilter(escape_controls)
