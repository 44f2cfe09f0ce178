"""Avro 1.12: schemas, canonical texts, compatibility and binary values, by the rules of Java's library."""
