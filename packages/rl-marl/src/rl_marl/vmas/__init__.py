"""The vectorised simulator VMAS as a batched, grouped environment of rl-core."""
