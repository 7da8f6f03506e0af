"""OpenSpiel: games in which players take turns."""
