"""Which rows are drawn: one sampler per file."""
