"""The attacks, by what they are aimed at: each module has a tuple `CASES`."""

import importlib
import pkgutil

from tests.hostile.case import Case


def all_cases() -> list[Case]:
    """Returns the cases of all modules; those with equal options stand together."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    ]
    cases: list[Case] = [case for module in modules for case in module.CASES]
    order = {
        options: place for place, options in enumerate(dict.fromkeys(c.options for c in cases))
    }
    return sorted(cases, key=lambda case: order[case.options])
