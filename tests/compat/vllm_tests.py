"""vLLM's own tests of its OpenAI server, unmodified, against the whole server: `make test-compat-vllm`.

    python tests/compat/vllm_tests.py [--vllm-python FILE] [FILE ...]

Takes them from vLLM's source distribution, of the version that tools/vllm_env.py installs, and runs them in that
environment (`make vllm-env`). Writes docs/compat_vllm.md: each test that does not pass, and why. Exit status 1: one
failed that no reason is given for in vllm_reasons.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES, PAGE = ROOT / "build/vllm-sdist", ROOT / "docs/compat_vllm.md"
REASONS = Path(__file__).parent / "vllm_reasons.toml"
OPENAI = "tests/entrypoints/openai"
FILES = (
    *(f"{OPENAI}/completion/test_{name}.py" for name in ("completion", "prompt_validation", "token_in_token_out")),
    *(
        f"{OPENAI}/chat_completion/test_{name}.py"
        for name in (
            *("chat", "chat_completion", "chat_echo", "chat_logit_bias_validation", "completion_with_function_calling"),
            *("enable_force_include_usage", "extra_content_fields", "include_reasoning", "logprob_token_ids"),
            *("root_path",),
        )
    ),
    *(f"{OPENAI}/test_{name}.py" for name in ("chunked_prompt", "return_token_ids", "return_tokens_as_ids")),
    f"{OPENAI}/models/test_models.py",
    f"{OPENAI}/responses/test_simple.py",
    "tests/entrypoints/anthropic/test_messages.py",
    "tests/entrypoints/serve/tokenize/test_tokenization.py",
    "tests/entrypoints/serve/instrumentator/test_basic.py",
)


@dataclass(frozen=True)
class Found:
    file: str
    test: str
    problem: str | None  # None: it passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: all that concern what this server has")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build/vllm-env/bin/python", metavar="FILE")
    options = parser.parse_args()
    if not options.vllm_python.exists():
        print(f"There is no {options.vllm_python}: make vllm-env, or name one with --vllm-python.", file=sys.stderr)
        return 1
    tests = sources(options.vllm_python)
    found = ran(options.vllm_python, tests, options.files or FILES)
    reasons: dict[str, str] = tomllib.loads(REASONS.read_text())
    PAGE.write_text(page(with_earlier(found), reasons, tests.name))
    unexplained = [one for one in found if one.problem is not None and reason(one, reasons) is None]
    for one in unexplained:
        print(f"without a reason: {one.file}::{one.test}: {one.problem}")
    print(f"{sum(one.problem is None for one in found)} of {len(found)} pass")
    return 1 if unexplained else 0


def sources(python: Path) -> Path:
    """The tests of the version that is installed there."""
    command = [str(python), "-c", "from importlib.metadata import version; print(version('vllm').split('+')[0])"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    folder = SOURCES / f"vllm-{version}"
    if not (folder / "tests").exists():
        SOURCES.mkdir(parents=True, exist_ok=True)
        plain = os.environ | {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}  # nothing is compiled
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        wanted = ["--no-binary", "vllm", f"vllm=={version}", "-d", str(SOURCES)]
        subprocess.run([*pip, *wanted], env=plain, check=True)
        with tarfile.open(SOURCES / f"vllm-{version}.tar.gz") as archive:
            members = [member for member in archive if "/tests/" in member.name]
            archive.extractall(SOURCES, members, filter="data")
    return folder


def ran(python: Path, tests: Path, files: Sequence[str]) -> list[Found]:
    report = SOURCES / "report.xml"
    report.unlink(missing_ok=True)
    variables = os.environ | {
        "HOCKET_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(tests), str(Path(__file__).parent))),
        "HF_HUB_OFFLINE": "1",
    }
    plugins = ["vllm_fixture", "tests.entrypoints.conftest", "tests.entrypoints.openai.responses.conftest"]
    command = [str(python), "-m", "pytest", "-q", "--noconftest", "--continue-on-collection-errors", "-c", os.devnull]
    command += ["--timeout", "120", f"--rootdir={tests}", f"--junitxml={report}"]
    for option in ("asyncio_mode=auto", "junit_family=xunit1"):
        command += ["-o", option]
    for plugin in (*plugins, "no:cacheprovider"):
        command += ["-p", plugin]
    subprocess.run([*command, *files], cwd=tests, env=variables)
    return [_found(case) for case in ElementTree.parse(report).iter("testcase")]


def _found(case: ElementTree.Element) -> Found:
    problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
    told = None if problem is None else " ".join((problem.get("message") or problem.tag).split())[:200]
    name, file = case.get("name") or "", case.get("file") or ""
    if not file:  # of a file that cannot be read
        name, file = "the file", name.replace(".", "/") + ".py"
    return Found(file.removeprefix("tests/entrypoints/"), name, told)


def with_earlier(found: list[Found]) -> list[Found]:
    """What was found of other files before, in the order of FILES."""
    kept = SOURCES / "found.json"
    earlier = [Found(**one) for one in json.loads(kept.read_text())] if kept.exists() else []
    files = {one.file for one in found}
    every = [*(one for one in earlier if one.file not in files), *found]
    kept.write_text(json.dumps([asdict(one) for one in every]))
    order = [file.removeprefix("tests/entrypoints/") for file in FILES]
    return sorted((one for one in every if one.file in order), key=lambda one: order.index(one.file))


def reason(one: Found, reasons: dict[str, str]) -> str | None:
    """Of the first pattern that its file, name and problem match."""
    text = f"{one.file}::{one.test}: {one.problem}"
    return next((why for pattern, why in reasons.items() if re.search(pattern, text)), None)


def page(found: list[Found], reasons: dict[str, str], version: str) -> str:
    passed = Counter(one.file for one in found if one.problem is None)
    lines = [
        "# vLLM's tests of its OpenAI server",
        "",
        f"Made by `make test-compat-vllm`: the tests of {version} that concern what this server has run unmodified",
        "against `hocket serve` with the demo model without its end token (`tests/compat/vllm_fixture.py`). All are",
        "listed here: by number those that pass, by name those that do not, and why.",
        "",
        "| file | passes | does not | why |",
        "|---|---|---|---|",
    ]
    for file in dict.fromkeys(one.file for one in found):
        lines.append(f"| `{file}` | {passed[file]} | | |")
        failed: dict[str, list[str]] = {}
        for one in found:
            if one.file == file and one.problem is not None:
                why = reason(one, reasons) or one.problem.replace("|", "\\|")
                failed.setdefault(why, []).append(one.test.replace("|", "\\|"))
        lines += [f"| | | {', '.join(f'`{test}`' for test in tests)} | {why} |" for why, tests in failed.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
