"""Simulators written in JAX: Brax and Jumanji."""
