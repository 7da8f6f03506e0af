"""Planning: policies that look ahead in an environment."""
