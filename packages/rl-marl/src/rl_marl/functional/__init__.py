"""Formulas of multi-agent learning: pure functions of tensors, without keys and without reduction."""
