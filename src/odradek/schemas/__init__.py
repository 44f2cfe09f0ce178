"""The languages of schemas (Avro, JSON Schema, Protobuf), and the subjects of a schema registry as a state machine.

Each language has a parser, a canonical text, a check of compatibility, and a codec for values. ``parsed`` is their
common interface. All of it is plain Python without clock, socket or file. ``subjects`` has the versions and ids of a
registry, which follow from the records of its topic.
"""
