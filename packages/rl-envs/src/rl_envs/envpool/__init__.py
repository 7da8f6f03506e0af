"""EnvPool: environments stepped in C++ threads."""
