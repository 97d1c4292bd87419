"""When a wait of a test is over: no test passes or fails by how fast or how busy the machine is."""

HANG_S = 900.0
"""Seconds after which something that has not happened will never happen."""
