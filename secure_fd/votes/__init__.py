"""Predictions as bounded integers: packing, budget, survey and smallest number of voters."""
