"""What is fuzzed: each target takes bytes and raises for what must not be. Nothing here knows a fuzzer.

A target is a module with `check(data)`; MAX_BYTES bounds its inputs, PACKAGES are those whose branches guide the
fuzzer. Kept inputs lie in tests/fuzz/corpus/<name>, and every one of them is a test (test_corpus.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
NAMES = (
    *("requests", "http", "forms", "webhooks", "traces", "options", "frames", "disk_tier", "weights", "checkpoints"),
    *("calls", "block_frames"),
)


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    check: Callable[[bytes], None]
    max_bytes: int

    @classmethod
    def load(cls, name: str) -> Target:
        module = importlib.import_module(f"fuzz.targets.{name}")
        return cls(name, module.check, getattr(module, "MAX_BYTES", 4096))
