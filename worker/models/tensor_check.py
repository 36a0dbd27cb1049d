"""Whether a checkpoint holds the tensors that its configuration makes us expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from worker.base.errors import CheckpointError

MAX_NAMES_IN_MESSAGE = 8
Shape = tuple[int, ...]


def check_tensors(
    place: Path, found: Mapping[str, Shape], expected: Mapping[str, Shape], is_ignorable: Callable[[str], bool]
) -> None:
    """found: names and shapes of what is stored at `place`. Raises CheckpointError naming what is missing, unexpected
    or of another shape than expected."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected and not is_ignorable(name)]
    misshapen = [
        f"{name} is {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    problems = [
        f"{what}: {_listing(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", misshapen))
        if names
    ]
    if problems:
        raise CheckpointError(f"the tensors in {place} do not fit its config.json; {'; '.join(problems)}")


def _listing(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - MAX_NAMES_IN_MESSAGE
    return ", ".join(names[:MAX_NAMES_IN_MESSAGE]) + (f" and {more} more" if more > 0 else "")
