"""Federations that run in one process."""
