"""The protocol behind the homomorphic sum: scheme, tags, messages, parties; read in that order."""
