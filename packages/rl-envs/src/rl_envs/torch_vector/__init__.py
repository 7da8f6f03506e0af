"""Simulators that step batches of torch tensors."""
