"""The controller of a cluster: its node and its listeners."""

from __future__ import annotations

from odradek.broker.controller_node import ControllerNode
from odradek.broker.server import BrokerServer


class ControllerServer(BrokerServer, ControllerNode):
    """A controller with its sockets. All of its listeners serve the requests of nodes and administrators."""
