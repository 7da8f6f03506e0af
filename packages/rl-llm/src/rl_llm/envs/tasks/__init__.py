"""Tasks that a tiny model learns from scratch: prompts and rewards, with no download."""
