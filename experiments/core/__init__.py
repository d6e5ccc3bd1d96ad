"""Runs, results and the engine of all studies."""
