"""Methods that only comparisons run: named as experiments.rivals.module:Name."""
