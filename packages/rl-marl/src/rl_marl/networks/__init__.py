"""Networks of agent groups: shared or separate parameters, own or joint inputs."""
