"""retarget shows what an online learner has really learned, and corrects it.

    import retarget as rt

The functions of the core work on a Gram matrix `K` (n, n) and targets `Y` (n,) or (n, c), rows in
stream order, NumPy or torch; an `SGD` describes the online learner. The rest is built on them.
"""

import lazy_loader

__version__ = "0.1.0"

# torch, scikit-learn and Polars take seconds to import: each name is imported when it is first
# used. `__init__.pyi` lists them, for this line and for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
