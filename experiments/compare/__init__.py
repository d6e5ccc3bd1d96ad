"""Rows of the main job, attacked."""
