"""Transforms of chat environments that answer the policy's turn with turns of a tool."""
