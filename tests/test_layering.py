"""The arrows of docs/architecture.md, enforced: who may import or include whom."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"gateway", "worker", "vllm_engine", "schedcore", "hocket", "bench"}
MAY_IMPORT = {
    "schedcore": set(),
    "gateway": {"schedcore", "hocket"},  # hocket: the SDK, for `hocket chat`
    "worker": {"schedcore"},
    "vllm_engine": {"schedcore"},
    "client/hocket": set(),
}
# Rooms (folders and files) of a package, from the top: a room imports only from rooms below it.
ROOM_ORDERS = {
    "gateway": (
        "cli",
        "cluster",
        "node",
        "server",
        "app",
        "routes",
        "services",
        "offline.running",
        "offline.checking",
        "offline.nodes",
        "offline.store",
        "offline.database",
        "answers",
        "generation",
        "resumption",
        "advisories",
        "http",
        "stock",
        "fleet",
        "engine",
        "model",
        "tools",
        "reasoning",
        "embedding",
        "metrics",
        "config",
        "protocol",
        "base",
    ),
    "worker": (
        "__main__",
        "process",
        "calibration",
        "speculation",
        "runner",
        "forms",
        "forward",
        "tiers",
        "sampling",
        "grammars",
        "models",
        "ops",
        "batch",
        "base",
    ),
    "vllm_engine": (
        "__main__",
        "engine_process",
        "calibration",
        "make_core",
        "engine",
        "scheduler",
        "first_estimate",
        "make_advisor",
        "requests",
        "images",
        "grammars",
        "sessions",
        "kv",
        "before_release",
        "runner",
        "steering",
        "settings",
        "adapters",
        "environment",
        "compat",
    ),
    "schedcore": ("simulation", "routing", "record", "latency", "serving", "peers", "tiers", "grammar", "api", "gguf"),
    "bench": ("run", "studies", "proofs", "lib", "demo_model"),
}
FORBIDDEN_THIRD_PARTY = {
    "schedcore": {"torch", "aiohttp"},
    "gateway": {"torch", "transformers"},
    "worker": {"aiohttp", "transformers"},
    "vllm_engine": {"aiohttp"},
    "client/hocket": {"torch", "aiohttp", "numpy"},
}


def tracked(*patterns: str) -> list[Path]:
    """Files of the work tree that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


@functools.cache
def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_package_imports_only_what_its_layer_may(package: str) -> None:
    files = tracked(f"{package}/*.py")
    assert files, f"no Python files found in {package}"
    itself = package.rsplit("/", 1)[-1]
    for path in files:
        roots = {module.split(".")[0] for module in imported_modules(path)}
        wrong = (roots & OURS) - MAY_IMPORT[package] - {itself}
        wrong |= roots & FORBIDDEN_THIRD_PARTY[package]
        assert not wrong, f"{path.relative_to(ROOT)} must not import {sorted(wrong)}"


def relative_imports(path: Path) -> set[str]:
    """What a file imports by dots, in full."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].relative_to(ROOT).as_posix().removeprefix("client/").replace("/", ".")
            source = f"{folder}.{node.module}" if node.module else folder
            modules |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return modules


def imports_within(package: str) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports, also for types only. `__init__` goes by the folder's name.

    A folder's own name is no import of its `__init__` when it only leads to a module within.
    """
    folder = ROOT / package
    modules: dict[str, Path] = {}
    for path in tracked(f"{package}/*.py"):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in modules.items():
        found = (imported_modules(path) | relative_imports(path)) & modules.keys()
        leads_on = {module for module in found if any(other.startswith(module + ".") for other in found)}
        graph[name] = found - leads_on - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """What can only be imported together: peels off whatever imports nothing that is left, and who is not imported."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        free = {name for name, targets in left.items() if not targets or name not in imported}
        if not free:
            return [sorted(left)] if left else []
        left = {name: targets - free for name, targets in left.items() if name not in free}


def room_of(module: str, rooms: tuple[str, ...]) -> str | None:
    inner = module.partition(".")[2]
    return next((room for room in rooms if inner == room or inner.startswith(room + ".")), None)


@pytest.mark.parametrize("package", sorted({*MAY_IMPORT, *ROOM_ORDERS}))
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    assert not circles(imports_within(package))


@pytest.mark.parametrize("package", ROOM_ORDERS)
def test_arrows_between_rooms_run_down(package: str) -> None:
    rooms, graph = ROOM_ORDERS[package], imports_within(package)
    empty = {room for room in rooms if not any(room_of(module, rooms) == room for module in graph)}
    assert not empty, "each room of the written order has modules"
    homeless = {module for module in graph if room_of(module, rooms) is None and (ROOT / package).name != module}
    # A folder that only holds rooms
    homeless = {
        module for module in homeless if not any(f"{package}.{room}".startswith(module + ".") for room in rooms)
    }
    assert not homeless, "each module belongs to a room of the written order"
    up = [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if (source := room_of(module, rooms)) is not None
        and (lower := room_of(target, rooms)) is not None
        and rooms.index(lower) < rooms.index(source)
    ]
    assert not up, "a room imports only from rooms below it"


MAX_FILES = 15  # of source in a folder, beside its sub-folders; more, and a noun is missing
CROWDED = {  # folders that have more for now, and how many at most: this table may only shrink
}


def test_no_folder_holds_more_files_than_one_takes_in_at_a_glance() -> None:
    """A list of tests mirrors the tree, so tests are not counted."""
    sources = [path for path in tracked("*.py", "*.h", "*.cpp", "*.cu", "*.cuh") if path.name != "__init__.py"]
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in sources)
    counts = {folder: count for folder, count in folders.items() if not folder.startswith("tests/")}
    too_many = {folder: count for folder, count in counts.items() if count > CROWDED.get(folder, MAX_FILES)}
    assert not too_many, "find the noun that is missing"
    assert not [folder for folder in CROWDED if counts.get(folder, 0) <= MAX_FILES], "take it out of the table"


def test_only_ops_names_a_kernel() -> None:
    users = [path for path in tracked("*.py") if any("_kernels" in module for module in imported_modules(path))]
    names = {path.relative_to(ROOT).as_posix() for path in users}
    assert {name for name in names if not name.startswith(("tests/", "bench/"))} == {"worker/ops/native.py"}


def test_only_lines_to_engines_and_nodes_know_of_sockets() -> None:
    files = tracked("gateway/*.py")
    users = {p.name for p in files if "schedcore.api.frame_socket.FrameSocket" in imported_modules(p)}
    assert users == {"engine_line.py", "frame_line.py", "network.py", "fleet_peer.py"}
    dialers = {p.name for p in files if "schedcore.api.frame_socket.connect" in imported_modules(p)}
    assert dialers == {"local_engine.py", "node_engine.py"}


def test_only_what_drives_ray_imports_it() -> None:
    """And that is imported by a command when it is called: tests/gateway/cluster/test_without_ray.py."""
    users = [path for path in tracked("*.py") if any(name.split(".")[0] == "ray" for name in imported_modules(path))]
    names = {path.relative_to(ROOT).as_posix() for path in users}
    drivers = {f"gateway/cluster/ray_{noun}.py" for noun in ("cluster", "leader", "node", "nodes")}
    assert {name for name in names if not name.startswith("tests/")} <= drivers


def includes(path: Path) -> set[str]:
    return set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        (
            "cpp/core",
            r"Python\.h|pybind11|torch|cuda|(chrono|ctime|thread|mutex|atomic|iostream|fstream|cstdio|unistd\.h)$",
        ),
        ("kernels/include", r"Python\.h|pybind11|torch|ATen|c10"),
        ("kernels/cpu", r"Python\.h|pybind11|torch|ATen|c10"),
        ("kernels/cuda", r"Python\.h|pybind11|torch|ATen|c10"),
    ],
)
def test_native_code_stays_in_its_layer(folder: str, banned: str) -> None:
    files = tracked(f"{folder}/*")
    assert files, f"no files found in {folder}"
    for path in files:
        wrong = {header for header in includes(path) if re.match(banned, header)}
        assert not wrong, f"{path.relative_to(ROOT)} must not include {sorted(wrong)}"


# The rooms of cpp/core from the top: a room includes what stands below it.
CORE_ROOMS = (
    "simulation",
    "routing",
    "scheduler",
    "speculation",
    "advisor",
    "transfers",
    "sessions",
    "state",
    "policies",
    "stages",
    "solvers",
    "offline",
    "tiers",
    "memory",
    "requests",
    "estimates",
    "base",
    "system",
)


def test_rooms_of_the_core_include_downward_only() -> None:
    root = ROOT / "cpp/core"
    assert {path.name for path in root.iterdir()} == set(CORE_ROOMS)
    for path in tracked("cpp/core/*"):
        room = path.relative_to(root).parts[0]
        above = CORE_ROOMS[: CORE_ROOMS.index(room)]
        wrong = {header for header in includes(path) if "/" in header and header.split("/")[0] in above}
        assert not wrong, f"{path.relative_to(ROOT)} is in a room below that of {sorted(wrong)}"


def test_no_include_circles() -> None:
    core = ROOT / "cpp/core"
    files = tracked("cpp/*.h", "cpp/*.cpp")
    arrows = {
        path: {core / name for name in includes(path)} | {path.parent / name for name in includes(path)}
        for path in files
    }
    free: set[Path] = set()
    while done := {path for path in files if path not in free and arrows[path] & set(files) <= free}:
        free |= done
    circle = sorted(path.relative_to(ROOT).as_posix() for path in set(files) - free)
    assert not circle, f"in a circle of includes, or above one: {circle}"


# What is more is a collaborator that is missing (of the scheduler), or belongs to one of them (of a request).
MAX_PRIVATE_METHODS, MAX_FIELDS, MAX_COLUMNS = 25, 15, 28


def class_body(header: str, name: str) -> str:
    """Without comments and bodies of functions. Each declaration ends with a semicolon."""
    code = re.sub(r"//[^\n]*", "", (ROOT / header).read_text())
    found = re.search(rf"^(?:class|struct) {name} \{{$(.*?)^\}};$", code, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no class {name} in {header}"
    return re.sub(r"\{[^{}]*\}", ";", found[1])


def test_the_scheduler_is_the_order_of_its_phases() -> None:
    _, _, private = class_body("cpp/core/scheduler/scheduler.h", "Scheduler").partition("private:")
    declared = [line.strip() for line in private.split(";") if line.strip()]
    methods = [line for line in declared if "(" in line.partition("=")[0]]
    fields = [line for line in declared if line not in methods]
    assert all(re.search(r"\w_$", line.partition("=")[0].strip()) for line in fields), fields
    assert methods
    assert len(methods) <= MAX_PRIVATE_METHODS
    assert len(fields) <= MAX_FIELDS


def test_a_request_has_few_columns_that_everybody_sees() -> None:
    declared = class_body("cpp/core/requests/request.h", "RequestTable").split(";")
    columns = [line for line in declared if re.match(r"\s*std::vector<.*> \w+$", line)]
    assert any(line.endswith(" num_tokens") for line in columns)
    assert len(columns) - 1 <= MAX_COLUMNS, "one is the list of free slots"


def test_no_class_goes_on_in_a_second_file() -> None:
    files: dict[str, set[str]] = {}
    for path in tracked("cpp/*.cpp", "kernels/*.cpp"):
        for name in re.findall(r"^(?:\w.*[ *&])?([A-Z]\w*)::~?\w+\(", path.read_text(), re.MULTILINE):
            files.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    assert "Scheduler" in files
    assert not {name: sorted(where) for name, where in files.items() if len(where) > 1}


@pytest.mark.parametrize("folder", ["kernels", "cpp", "bench", "tests"])
def test_folders_that_are_no_packages(folder: str) -> None:
    assert not list((ROOT / folder).rglob("__init__.py"))
