"""The event loop: its scheduler, its threads, the clock, and work in steps."""
