"""Its presence puts the repository root on the path, so that tests can share helpers."""
