"""Third-party clients, unmodified, against the whole server with the demo model: `make test-compat`.

    python tests/compat/run.py [CLIENT ...] [--vllm-python FILE]

Makes an environment of their own for them (build/compat-env, and build/compat-node where there is node), runs the
script of each (tests/compat/clients), and writes their rows of docs/compat.md. vLLM's own client is left out where its
environment is not there (`make vllm-env`). Exit status 1: a step failed that REASONS does not explain, or one succeeded
that it does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.served import serving  # noqa: E402

CLIENTS = Path(__file__).parent / "clients"
PYTHON_ENV, NODE_ENV = ROOT / "build" / "compat-env", ROOT / "build" / "compat-node"
PAGE = ROOT / "docs" / "compat.md"
SECONDS = 300  # of one script: a deadline, not a measurement

# Names, scripts and packages. The newest versions are taken: the page says which.
PYTHON = {
    "openai-python": ("openai_python.py", ["openai"]),
    "anthropic-python": ("anthropic_python.py", ["anthropic"]),
    "LiteLLM": ("litellm_sdk.py", ["litellm", "mcp"]),
    "LangChain": ("langchain_client.py", ["langchain-openai"]),
    "LlamaIndex": (
        "llama_index_client.py",
        ["llama-index-llms-openai-like", "llama-index-embeddings-openai-like"],
    ),
    "pydantic-ai": ("pydantic_ai_client.py", ["pydantic-ai-slim[openai]"]),
    "instructor": ("instructor_client.py", ["instructor"]),
    "openai-agents": ("openai_agents_client.py", ["openai-agents"]),
    "dspy": ("dspy_client.py", ["dspy"]),
    "smolagents": ("smolagents_client.py", ["smolagents[openai]"]),
    "lm-eval": ("lm_eval_client.py", ["lm-eval[api]"]),
    "guidellm": ("guidellm_client.py", ["guidellm"]),
}
VLLM = {"vllm bench serve": "vllm_bench.py"}  # in the environment of `make vllm-env`, which has gigabytes
NODE = {
    "openai-node": ("openai_node.mjs", ["openai", "zod"]),
    "Vercel AI SDK": ("ai_sdk.mjs", ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"]),
}
ORDER = (*PYTHON, *VLLM, *NODE)
# Why a step cannot succeed here, by client and step: the model, not the server.
REASONS = {
    (
        "dspy",
        "typed output",
    ): "to a model that it does not know it sends no schema: the demo model writes no JSON unasked",
}


@dataclass
class Found:
    package: str = "–"
    problems: dict[str, str | None] = field(default_factory=dict)  # by step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="default: all")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build/vllm-env/bin/python", metavar="FILE")
    options = parser.parse_args()
    unknown = sorted({*options.clients} - {*ORDER})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ORDER)}")
    names = [name for name in ORDER if not options.clients or name in options.clients]
    if not options.vllm_python.exists():
        names = [name for name in names if name not in VLLM]
        print(f"left out: {', '.join(VLLM)}; there is no {options.vllm_python} (make vllm-env)", flush=True)
    make_environments(names)
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), "--api-key", "compat-key") as server:
        for name in names:
            print(f"{name} ...", flush=True)
            found[name] = ran(_command(name, options.vllm_python), server.url)
            for step, problem in found[name].problems.items():
                print(f"  {step}: {problem or 'ok'}", flush=True)
    PAGE.write_text(page({name: row(name, of) for name, of in found.items()}))
    wrong = [
        f"{name}, {step}"
        for name, of in found.items()
        for step, problem in of.problems.items()
        if (problem is not None) != ((name, step) in REASONS)
    ]
    print("\n".join(["", *(f"not as expected: {which}" for which in wrong)]))
    return 1 if wrong else 0


def make_environments(names: list[str]) -> None:
    """Each Python client has one of its own: together they want versions of the same packages that exclude others."""
    for name in names:
        folder = PYTHON_ENV / name
        if name in PYTHON and not (folder / ".built").exists():
            print(f"installing {name} ...", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
            if subprocess.run([*pip, *PYTHON[name][1]], check=False).returncode == 0:
                (folder / ".built").touch()
    if shutil.which("npm") and not (NODE_ENV / ".built").exists():
        NODE_ENV.mkdir(parents=True, exist_ok=True)
        wanted = sorted({package for _, packages in NODE.values() for package in packages})
        subprocess.run(["npm", "install", "--silent", "--prefix", str(NODE_ENV), *wanted], check=True)
        (NODE_ENV / ".built").touch()


def ran(how: tuple[list[str], Path], url: str) -> Found:
    found = Found()
    command, folder = how
    if shutil.which(command[0]) is None:
        found.problems["start"] = f"there is no {Path(command[0]).name} for it on this machine"
        return found
    try:
        done = subprocess.run(
            [*command, url], cwd=folder, env=_variables(), capture_output=True, text=True, timeout=SECONDS
        )
        output, error = done.stdout, done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    except subprocess.TimeoutExpired as ended:
        output, error = (ended.stdout or b"").decode(), f"it took longer than {SECONDS} seconds"
    for line in output.splitlines():
        told = json.loads(line) if line.startswith(('{"step', '{"package')) else {}
        if "package" in told:
            found.package = f"{told['package']} {told['version']}"
        elif "step" in told:
            found.problems[told["step"]] = told["problem"]
    if error:
        found.problems["end"] = error[:300]
    return found


def _command(name: str, vllm_python: Path) -> tuple[list[str], Path]:
    if name in VLLM:
        return [str(vllm_python), str(CLIENTS / VLLM[name])], CLIENTS
    if name in PYTHON:
        return [str(PYTHON_ENV / name / "bin/python"), str(CLIENTS / PYTHON[name][0])], CLIENTS
    for script in CLIENTS.glob("*.mjs"):  # node looks for packages beside the script
        shutil.copy(script, NODE_ENV)
    return ["node", NODE[name][0]], NODE_ENV


def _variables() -> dict[str, str]:
    """Nothing of these clients' makers is to be asked for anything."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "x"}
    return kept | quiet


def page(rows: dict[str, str]) -> str:
    """Rows of clients that were not run now stay as they are."""
    earlier = {line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    rows = earlier | rows
    lines = [
        "# Clients that were tried",
        "",
        "Made by `make test-compat`: each client's script (`tests/compat/clients`) runs unmodified packages, in an",
        "environment of their own, against `hocket serve` with the demo model. It is small: where a step needs a",
        "certain answer, the script asks for it by a schema or a forced call.",
        "",
        "| client | version | works | does not, and why |",
        "|---|---|---|---|",
        *(rows[name] for name in ORDER if name in rows),
    ]
    return "\n".join([*lines, ""])


def row(name: str, of: Found) -> str:
    works = ", ".join(step for step, problem in of.problems.items() if problem is None)
    fails = "; ".join(
        f"{step}: {REASONS.get((name, step), _shown(problem))}"
        for step, problem in of.problems.items()
        if problem is not None
    )
    return f"| {name} | {of.package} | {works or '–'} | {fails or '–'} |"


def _shown(problem: str) -> str:
    return problem.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
