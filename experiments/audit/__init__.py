"""The audit's command line: settings, work over processes, and the table."""
