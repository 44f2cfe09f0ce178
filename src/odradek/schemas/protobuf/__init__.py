"""Protobuf, syntax 2 and 3: schemas as text and as descriptors, compatibility, binary values. Groups are refused."""
