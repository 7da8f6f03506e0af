"""Gymnasium as rl-core environments. Nothing is imported until it is used."""
