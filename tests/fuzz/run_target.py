"""One target under Atheris: `python tests/fuzz/run_target.py NAME [libFuzzer's arguments] CORPUS...`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

PACKAGES = ["gateway", "schedcore", "worker"]  # whose branches guide the fuzzer

TESTS = Path(__file__).parents[1]


def _find_sources_first() -> None:
    """Atheris sees no branches of what the finder of an editable install loads: that one is left native modules."""
    sys.meta_path.sort(key=lambda finder: type(finder).__module__.startswith("_editable"))


def main() -> None:
    name, *arguments = sys.argv[1:]
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    _find_sources_first()
    with atheris.instrument_imports(include=PACKAGES):
        from fuzz.target import Target

        target = Target.load(name)
    again = f"{sys.executable} {Path(__file__).resolve()} {name}"  # how libFuzzer starts itself, by a shell, to merge
    atheris.Setup([again, f"-max_len={target.max_bytes}", *arguments], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
