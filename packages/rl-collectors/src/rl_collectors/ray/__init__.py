"""Collectors whose environments and policies run in Ray actors, on one machine or on many."""
