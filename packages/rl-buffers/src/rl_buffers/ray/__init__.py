"""A replay buffer in a Ray actor, for processes on one machine or on many."""
