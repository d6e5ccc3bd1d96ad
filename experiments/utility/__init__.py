"""Accuracy against epsilon: cells, their runs, the store that makes them resumable, the results."""
