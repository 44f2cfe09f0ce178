"""The publishers of the catalogue's changes: to settings, logs and coordinators. ``order`` has all of them.

A publisher reads the changes from the delta and the present state from the image. Handlers do not call publishers.
"""
