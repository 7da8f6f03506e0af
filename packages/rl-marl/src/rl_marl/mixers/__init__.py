"""Mixers: the value of a team from the values of its agents."""
