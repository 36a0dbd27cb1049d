"""vLLM's own tests of its OpenAI server, unmodified, against the whole server: `make test-compat-vllm`.

    python tests/compat/vllm_tests.py [--vllm-python FILE] [FILE ...]

Takes them from vLLM's source distribution, of the version that tools/vllm_env.py installs, and runs them in that
environment (`make vllm-env`). Writes docs/compat_vllm.md: each test that does not pass, and why. Exit status 1: one
failed that no reason is given for in vllm_reasons.toml, or a reason there is of no test that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

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
    *(f"{OPENAI}/responses/test_{name}.py" for name in ("basic", "function_call", "simple", "stateful")),
    f"{OPENAI}/responses/test_structured_output.py",
    "tests/entrypoints/anthropic/test_messages.py",
    "tests/entrypoints/serve/tokenize/test_tokenization.py",
    "tests/entrypoints/serve/instrumentator/test_basic.py",
)


class Reason(TypedDict):
    why: str
    tests: list[str]  # patterns of "FILE::TEST: PROBLEM"
    sometimes: NotRequired[bool]  # they may pass, too: a race


@dataclass(frozen=True)
class Found:
    file: str
    test: str
    problem: str | None  # None: it passed

    def __str__(self) -> str:
        return f"{self.file}::{self.test}: {self.problem}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: all that concern what this server has")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build/vllm-env/bin/python", metavar="FILE")
    options = parser.parse_args()
    if not options.vllm_python.exists():
        print(f"There is no {options.vllm_python}: make vllm-env, or name one with --vllm-python.", file=sys.stderr)
        return 1
    tests = sources(options.vllm_python)
    sought = options.files or FILES
    found = ran(options.vllm_python, tests, sought)
    reasons = list(tomllib.loads(REASONS.read_text())["reason"])
    every = with_earlier(found)
    if has_all_files(every):
        PAGE.write_text(page(every, reasons, tests.name))
    problems = wrong(found, every, sought, reasons)
    print("\n".join([*problems, f"{sum(one.problem is None for one in found)} of {len(found)} pass"]))
    return 1 if problems else 0


def wrong(found: list[Found], every: list[Found], sought: Sequence[str], reasons: list[Reason]) -> list[str]:
    """found: now, of the files that were sought; every: with what earlier runs found of others."""
    return [
        *(f"found nothing: {file}" for file in sought if _short_file(file) not in {one.file for one in found}),
        *(f"without a reason: {one}" for one in found if one.problem is not None and reason(one, reasons) is None),
        *(f"not needed: {pattern}" for pattern in superfluous(every, reasons)),
    ]


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
    hub = SOURCES / "hub"  # the fixture makes what is in it
    shutil.rmtree(hub, ignore_errors=True)
    variables = os.environ | {
        "HOCKET_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(tests), str(Path(__file__).parent))),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(hub),
    }
    plugins = ["vllm_fixture", "tests.entrypoints.conftest", "tests.entrypoints.openai.responses.conftest"]
    command = [str(python), "-m", "pytest", "-q", "--noconftest", "--continue-on-collection-errors", "-c", os.devnull]
    command += ["--timeout", "60", f"--rootdir={tests}", f"--junitxml={report}"]
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
    return Found(_short_file(file), name, told)


def _short_file(file: str) -> str:
    return file.removeprefix("tests/entrypoints/")


def with_earlier(found: list[Found]) -> list[Found]:
    """What was found of other files before, in the order of FILES."""
    kept = SOURCES / "found.json"
    earlier = [Found(**one) for one in json.loads(kept.read_text())] if kept.exists() else []
    files = {one.file for one in found}
    every = [*(one for one in earlier if one.file not in files), *found]
    kept.write_text(json.dumps([asdict(one) for one in every]))
    order = [_short_file(file) for file in FILES]
    return sorted((one for one in every if one.file in order), key=lambda one: order.index(one.file))


def has_all_files(found: list[Found]) -> bool:
    return {_short_file(file) for file in FILES} <= {one.file for one in found}


def reason(one: Found, reasons: list[Reason]) -> str | None:
    """Of the first that has a pattern for it."""
    return next((each["why"] for each in reasons for pattern in each["tests"] if re.search(pattern, str(one))), None)


def superfluous(found: list[Found], reasons: list[Reason]) -> list[str]:
    """Patterns that no failure needs: none matches, or an earlier pattern has each. Not told before all files ran."""
    if not has_all_files(found):
        return []
    failed = [str(one) for one in found if one.problem is not None]
    unneeded = []
    for each in reasons:
        for pattern in each["tests"]:
            left = [one for one in failed if not re.search(pattern, one)]
            if len(left) == len(failed) and not each.get("sometimes"):
                unneeded.append(pattern)
            failed = left
    return unneeded


def page(found: list[Found], reasons: list[Reason], version: str) -> str:
    passed = Counter(one.file for one in found if one.problem is None)
    argued = Counter(one.file for one in found if one.problem is not None)
    lines = [
        "# vLLM's tests of its OpenAI server",
        "",
        f"Made by `make test-compat-vllm`: the tests of {version} that concern what this server has run unmodified",
        "against `hocket serve` with the demo model (`tests/compat/vllm_fixture.py`), by the name of the model that a",
        "test was written for. `ARGS=FILE` runs one file; all have to have run for this page.",
        "",
        "A test that does not pass has a reason in `tests/compat/vllm_reasons.toml`, which is shown here; one without",
        "a reason, and a reason without a test, fail the run. Left out are files of what this server has not (sound,",
        "pictures, classification, `/inference`, SageMaker, Cohere's API), that call vLLM's own classes without a",
        "server, and of embeddings and of tools by certain parsers, which compare with models that are not here.",
        "",
        "| file | pass | argued |",
        "|---|---|---|",
    ]
    lines += [f"| `{file}` | {passed[file]} | {argued[file]} |" for file in dict.fromkeys(one.file for one in found)]
    lines += [f"| all | {passed.total()} | {argued.total()} |", "", "## Argued", ""]
    for each in [*(each["why"] for each in reasons), None]:
        of = [one for one in found if one.problem is not None and reason(one, reasons) == each]
        if of:
            lines += [*textwrap.wrap(f"{each or 'No reason is given.'}", 120), ""]
            lines += [f"- `{_shown(one)}`" for one in of]
            lines.append("")
    return "\n".join(lines)


def _shown(one: Found) -> str:
    """Parameters may be long."""
    name = f"{one.file.rpartition('/')[2]}::{one.test}"
    return name if len(name) <= 116 else f"{name[:113]}..."


if __name__ == "__main__":
    sys.exit(main())
