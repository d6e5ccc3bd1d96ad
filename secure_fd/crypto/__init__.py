"""Thin typed covers of the `cryptography` library; nothing is invented here."""
