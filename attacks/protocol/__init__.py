"""Attacks on the protocol itself."""
