"""Recurrent modules: one definition for single steps and for whole sequences."""
