"""Environments written here: batched, stateless, in torch."""
