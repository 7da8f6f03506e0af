"""Policies that are language models. Nothing is imported until it is used."""
