"""Exploration: modules that disturb an action."""
