"""Checkpoints: a folder of tensors and JSON from which a run goes on exactly."""
