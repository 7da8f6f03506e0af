"""Evaluation of a policy: in the caller's thread or, beside training, in another thread, process or Ray actor."""
