"""Reconstruction of training images."""
