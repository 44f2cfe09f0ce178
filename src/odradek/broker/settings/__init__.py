"""The settings of the broker and of its resources."""
