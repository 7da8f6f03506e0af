"""Priority trees: draws in proportion to priorities, in C++ and in NumPy with the same numbers."""
