"""The broker process: sockets, one handler per API, partitions, the machines it drives."""
