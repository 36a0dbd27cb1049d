"""Servers of the comparisons over vLLM: vLLM alone, with our scheduler class, under our server, and our own worker."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lib import contestants

VLLM_MAIN = "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"
PLUG_IN = "vllm_engine.scheduler.HocketScheduler"
TOLD = 0.8  # of a target that is measured: what our servers are told of it
_BY_PRIORITY = {"priority": 1}
_FLEX = {"service_tier": "flex"}


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    command: str  # with {model} and {port}
    job_fields: dict[str, Any]  # by which a request says that it is offline work
    takes_targets: bool  # of requests


def add_vllm_options(parser: argparse.ArgumentParser, chosen: list[str]) -> None:
    parser.add_argument("--vllm-python", type=Path, required=True, help="of an environment by tools/vllm_env.py")
    parser.add_argument("--vllm-environment", default="", help="assignments for every vLLM, such as LD_PRELOAD=...")
    parser.add_argument("--servers", nargs="+", choices=("stock", "plugin", "vllm", "own"), default=chosen)
    parser.add_argument("--plugin-itl-ms", type=float, nargs="+", help="one plug-in each (default: as other servers)")
    parser.add_argument("--model", default="100m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--cache-gib", type=int, default=2)
    parser.add_argument("--output", type=Path, default=contestants.ROOT / "docs" / "results")
    parser.add_argument("--name", help="of the files there (default: this bench's)")
    parser.add_argument("--seed", type=int, default=0)


def vllm_contestants(arguments: argparse.Namespace, data: Path) -> list[Contestant]:
    """Those of --servers. arguments: with add_vllm_options(), ttft_ms, itl_ms and pace. With a pace ours are told
    no TTFT: where there is one, a pace counts from when the first token is due, and else from when it came."""
    python = shlex.quote(str(arguments.vllm_python.absolute()))  # not resolved: a link is what makes it an environment
    limits = f"--dtype {arguments.dtype} --max-num-seqs {arguments.max_num_seqs}"
    ttft_ms, itl_ms = TOLD * arguments.ttft_ms, TOLD * arguments.itl_ms
    told = (
        f"--itl-target-ms {itl_ms:g}" if arguments.pace else f"--ttft-target-ms {ttft_ms:g} --itl-target-ms {itl_ms:g}"
    )
    ours = f"{contestants.OUR_COMMAND} {limits} {told} --no-access-log"
    prefix = f"{arguments.vllm_environment} " if arguments.vllm_environment else ""
    cache = f"--kv-cache-memory-bytes {arguments.cache_gib}G"
    main = f"{python} -c {shlex.quote(VLLM_MAIN)} serve {{model}} --port {{port}}"
    stock = f"{prefix}VLLM_CPU_KVCACHE_SPACE={arguments.cache_gib} {main} {limits} --scheduling-policy priority"

    def plugin(itl_ms: float) -> Contestant:
        said = {"hocket": {"ttft_target_ms": ttft_ms, "itl_target_ms": itl_ms, "max_offline_step_ms": itl_ms}}
        braces = json.dumps(said).replace("{", "{{").replace("}", "}}")
        command = f"{stock} --scheduler-cls {PLUG_IN} --additional-config {shlex.quote(braces)}"
        return Contestant(f"the plug-in, {itl_ms:g} ms", command, _BY_PRIORITY, False)

    steered = f"--engine vllm --vllm-python {python} --data-dir {data}/vllm"
    known = {
        "stock": [Contestant("stock vLLM", stock, _BY_PRIORITY, False)],
        "plugin": [plugin(told_ms) for told_ms in arguments.plugin_itl_ms or [itl_ms]],
        "vllm": [Contestant("hocket on vLLM", f"{prefix}{ours} {cache} {steered}", _FLEX, True)],
        "own": [Contestant("hocket", f"{ours} {cache} --data-dir {data}/own", _FLEX, True)],
    }
    return [contestant for name in arguments.servers for contestant in known[name]]
