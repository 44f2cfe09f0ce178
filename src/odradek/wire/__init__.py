"""Encoders and decoders of Kafka's frames and messages, without I/O."""
