"""Selective federated distillation with secure sums and differential privacy.

`__init__.pyi` lists the public names. Each is imported at its first use, so that the parts that
need no tensors do not import torch.
"""

import lazy_loader

__version__ = "1.0.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
