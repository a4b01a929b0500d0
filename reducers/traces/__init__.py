"""Profiler traces: read exactly, reduced to a few kilobytes on the node where they were made."""
