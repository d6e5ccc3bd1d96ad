"""Attacks that read votes, class sums and generators as the server does."""
