"""Policies and critics of a group of agents, built from its specs."""
