"""Training contracts: what a logger, a stateful component and a seed are. Torch-free until a function needs torch."""
