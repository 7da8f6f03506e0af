"""Where new rows go: one writer per file."""
