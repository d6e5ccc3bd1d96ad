"""Training of networks: models, recipes, trainer and DP-SGD."""
