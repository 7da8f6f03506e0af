"""Simulators of gym's kind but not its interface: a base that says how theirs is read."""
