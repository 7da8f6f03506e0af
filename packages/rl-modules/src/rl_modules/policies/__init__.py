"""Policies and value operators: modules with input and output keys."""
