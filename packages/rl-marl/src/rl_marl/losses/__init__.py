"""Losses of agent groups, one file a family."""
