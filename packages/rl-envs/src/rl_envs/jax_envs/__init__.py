"""Simulators written in JAX: ``rl_envs.jax_envs.brax.BraxEnv``, ``rl_envs.jax_envs.jumanji.JumanjiEnv``."""
