"""The environment variables of the command line."""

from __future__ import annotations

BOOTSTRAP_SERVERS = "ODRADEK_BOOTSTRAP_SERVERS"
"""Addresses of brokers, in place of ``-b``."""
COMMAND_CONFIG = "ODRADEK_COMMAND_CONFIG"
"""A properties file, in place of ``--command-config``."""
LOG_LEVEL = "ODRADEK_LOG_LEVEL"
"""The log level of brokers: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
COMPLETION = "_ODRADEK_COMPLETE"
"""Set by the scripts of ``--show-completion`` when a shell asks for words."""
