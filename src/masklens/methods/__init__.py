"""Attribution methods, one file for each kind. `registry` defines what a method is.

The package can be called: `masklens.methods()` lists the names of the registered methods.
"""

import sys
from types import ModuleType


class _Methods(ModuleType):
    def __call__(self) -> list[str]:
        from .registry import METHODS, load_all

        load_all()
        return sorted(METHODS)


sys.modules[__name__].__class__ = _Methods
