"""Sums of votes that prove their range: Prio3 between two aggregators that do not collude."""
