"""Environments that step a world model."""
