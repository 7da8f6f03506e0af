"""Collectors whose environments and policies run in processes of their own."""
