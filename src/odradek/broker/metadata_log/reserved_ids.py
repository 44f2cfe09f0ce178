"""The reserved UUIDs of Kafka."""

from __future__ import annotations

from uuid import UUID

NO_UUID = UUID(int=0)
"""No topic, no directory, no incarnation."""
METADATA_TOPIC_ID = UUID(int=1)
"""The id of the metadata log's topic."""
