"""Makes PyTorch, transformers and what they bring impossible to import, as if not installed.

`pytest -p tests.without_pytorch` runs tests so; another process may execute this file before all
else.
"""

import sys
from importlib.machinery import PathFinder
from typing import Any

ABSENT = {"accelerate", "safetensors", "scipy", "sympy", "torch", "transformers", "triton"}


class _Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in ABSENT:
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder
