"""How an object of the core was made: its class and its keyword arguments, since the objects themselves tell neither.

A recipe is plain data, so that whoever gets it makes the same object again, in another process or on another day.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schedcore import _core

_MODULES = (_core, _core.algorithms)


class Recipe(msgspec.Struct, frozen=True):
    """`Recipe("Scheduler", {"config": Recipe("SchedulerConfig", {"num_units": 64, "num_layers": 2})})`."""

    kind: str  # a class of schedcore._core or of schedcore._core.algorithms
    arguments: dict[str, Recipe | bool | int | float | str | None]

    def build(self) -> Any:
        """Raises ValueError or TypeError if the class is unknown or refuses its arguments."""
        return self.kind_class(**self.build_arguments())

    def build_arguments(self) -> dict[str, Any]:
        return {name: a.build() if isinstance(a, Recipe) else a for name, a in self.arguments.items()}

    @property
    def kind_class(self) -> type[Any]:
        for module in _MODULES:
            found = getattr(module, self.kind, None)
            if isinstance(found, type):
                return found
        raise ValueError(f"the core has no class {self.kind!r}")

    def argument(self, *path: str) -> Any:
        """The argument at the end of a path of names, or None where there is none."""
        value: Any = self
        for name in path:
            value = value.arguments.get(name) if isinstance(value, Recipe) else None
        return value
