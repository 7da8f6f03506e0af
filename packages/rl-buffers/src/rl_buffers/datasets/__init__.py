"""Offline datasets as replay buffers: one layout for rows, one rule for episodes' ends, a reader per file format."""
