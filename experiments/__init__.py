"""Command-line experiments: parse, call, save."""
