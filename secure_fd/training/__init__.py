"""Training of networks: models, recipes, trainer and DP-SGD."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["models", "recipes"])
