"""The subjects of a schema registry as a state machine over the records of its topic.

``registration`` and ``deletion`` decide on a request and return records; only ``state.replay`` changes the state, with
the records that are in the log. So a registry that reads the log again has the same state.
"""
