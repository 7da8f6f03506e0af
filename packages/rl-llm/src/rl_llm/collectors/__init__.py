"""Collectors of dialogs."""
