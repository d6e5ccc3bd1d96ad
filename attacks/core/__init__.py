"""Interface of attacks: views, estimates, scores, statistics."""
