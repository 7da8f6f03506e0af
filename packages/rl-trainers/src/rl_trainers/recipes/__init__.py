"""Recipes: one algorithm a file, flat and readable, around a configuration dataclass. ``rl train NAME`` runs them."""
