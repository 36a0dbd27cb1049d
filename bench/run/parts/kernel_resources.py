"""What each CUDA kernel takes of a processor, out of the compiler's report.

    cmake -S . -B build/resources -DHOCKET_BUILD_CORE=OFF -DCMAKE_CUDA_FLAGS=-Xptxas=-v
    cmake --build build/resources 2>&1 | python -m bench.run.parts.kernel_resources

One line per kernel and architecture; registers and bytes from the smallest to the largest variant. `warps` is how many
of a processor's 64 the registers allow. Ends with status 1 if any variant keeps anything in local memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass

from bench.lib.table import render

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
REGISTERS, MAX_WARPS = 65_536, 64  # of a processor


@dataclass(frozen=True)
class Variant:
    registers: int
    shared_bytes: int  # static; what a launch asks for comes on top
    local_bytes: int


def read_variants(report: str) -> dict[tuple[str, str], Variant]:
    """By mangled name and architecture; what two files have is there once."""
    variants: dict[tuple[str, str], Variant] = {}
    entry, local = ("", ""), 0
    for line in report.splitlines():
        if match := ENTRY.search(line):
            entry = match[1], match[2]
        elif match := STACK.search(line):
            local = sum(int(size) for size in match.groups())
        elif match := USED.search(line):
            variants[entry] = Variant(int(match[1]), int(match[2] or 0), local)
    return variants


def kernel_name(mangled: str) -> str:
    demangled = subprocess.check_output(["c++filt", mangled], text=True)
    return re.search(r"(\w+_kernel)", demangled)[1]  # type: ignore[index]


def span(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


def main() -> int:
    kernels: dict[tuple[str, str], list[Variant]] = defaultdict(list)
    for (mangled, arch), variant in read_variants(sys.stdin.read()).items():
        kernels[kernel_name(mangled), arch].append(variant)
    rows = []
    for (name, arch), found in sorted(kernels.items()):
        registers = [variant.registers for variant in found]
        warps = [min(MAX_WARPS, REGISTERS // (32 * (-(-count // 8) * 8))) for count in registers]
        rows.append(
            [
                f"`{name}`",
                arch,
                str(len(found)),
                span(registers),
                span(warps),
                span([variant.shared_bytes for variant in found]),
                str(max(variant.local_bytes for variant in found)),
            ]
        )
    print(render(["kernel", "arch", "variants", "registers", "warps", "shared bytes", "local bytes"], rows))
    return int(any(row[-1] != "0" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
