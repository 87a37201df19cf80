"""The continual-learning lab: streams of tasks, one training loop, and methods as hooks into it."""

import lazy_loader

# `retarget reproduce --help` needs a module of this package, but not torch: each name is imported
# when it is first used. `__init__.pyi` lists them, for this line and for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
