"""The main comparison: settings, rows, their runs, the attacks on them, the results."""
