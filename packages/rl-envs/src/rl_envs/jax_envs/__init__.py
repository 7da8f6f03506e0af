"""Simulators in JAX, a file each: ``brax.BraxEnv``, ``jumanji.JumanjiEnv``, ``playground.MujocoPlaygroundEnv``."""
