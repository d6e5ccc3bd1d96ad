"""Membership inference."""
