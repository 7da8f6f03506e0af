"""dm_control and other dm_env environments."""
