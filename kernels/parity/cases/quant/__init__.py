"""Cases of the quantisation family: a module an op, or a few that are cast alike."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
