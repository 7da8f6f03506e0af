"""gymnasium's environments."""
