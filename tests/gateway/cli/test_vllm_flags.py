"""What `vllm serve` takes and `hocket serve` has no setting for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.options import OptionsError, add_options, engine_config, gateway_config, read_file
from gateway.cli.parser import Parser
from gateway.cli.vllm_flags import ONLY_WITH, WITHOUT_EFFECT, notes

DOCS = Path(__file__).resolve().parents[3] / "docs" / "vllm_flags.md"
MOST_USED = """--model m --served-model-name a b --host 0.0.0.0 --port 8001 --api-key k --dtype half --max_model_len 4k
    --gpu-memory-utilization 0.85 --tensor-parallel-size 1 -pp 1 --trust-remote-code --max-num-seqs 64 --seed 3
    --max-num-batched-tokens 8K --disable-log-requests --swap-space 4 --enforce-eager --enable-prefix-caching
    --enable-chunked-prefill --block-size 16 --kv-cache-dtype auto --load-format auto --enable-auto-tool-choice
    --tool-call-parser hermes --reasoning-parser qwen3 --tokenizer-mode auto --generation-config auto
    --disable-log-stats --uvicorn-log-level info --allowed-origins ["*"] --chat-template t.jinja
    --distributed-executor-backend mp --limit-mm-per-prompt {"image":0} --cpu-offload-gb 0 --task generate
    --disable-uvicorn-access-log --max-logprobs 5 --speculative-config {} --async-scheduling --no-enable-log-requests
    --scheduling-policy fcfs --kv-cache-memory-bytes 1G --compilation-config 3 --disable-custom-all-reduce"""


def parser() -> Parser:
    made = Parser(prog="hocket serve")
    add_options(made)
    return made


def read(line: str) -> dict[str, Any]:
    return vars(parser().parse_args(line.split()))


def test_the_most_used_flags_start_a_server() -> None:
    options = read(MOST_USED)
    engine, gateway = engine_config(options, Path("/m"), "a"), gateway_config(options, "m", ())
    assert options["model"] == "m"
    assert gateway.served_model_names == ("a", "b")
    assert not gateway.enable_access_log
    assert (engine.dtype, engine.max_model_len, engine.max_num_batched_tokens) == ("float16", 4000, 8192)
    assert engine.gpu_memory_utilization == 0.85
    said = notes(options)
    assert "--swap-space has no effect here: --host-cache-bytes keeps dropped cache in host memory" in said
    assert len(said) == len({line.split()[0] for line in said}) >= 12


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--tensor-parallel-size 2", "a server uses one device"),
        ("-tp 4", "a server uses one device"),
        ("--load-format gguf", "weights are read from safetensors"),
        ("--generation-config vllm", "sampling defaults are the checkpoint's"),
    ],
)
def test_what_would_change_the_answer_is_refused_with_the_reason(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(line)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "has_space"),
    [
        ("", True),
        ("--no-json-whitespace", False),
        ("--guided-decoding-disable-any-whitespace", False),
        ('--structured-outputs-config {"disable_any_whitespace":true,"backend":"guidance"}', False),
        ('--structured-outputs-config {"backend":"auto"}', True),
    ],
)
def test_whitespace_in_json(line: str, has_space: bool) -> None:
    assert gateway_config(read(line), "m", ()).json_has_space is has_space


@pytest.mark.parametrize("text", ["{", "[]", '{"enable_in_reasoning":true}'])
def test_what_else_a_config_of_structured_outputs_says(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(f"--structured-outputs-config {text}")
    assert "disable_any_whitespace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "speculation", "model"),
    [
        ('{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3}', "auto", None),
        ('{"model":"ngram"}', "auto", None),
        ('{"model":"/small","num_speculative_tokens":4}', "auto", "/small"),
        ('{"method":"draft_model","model":"/small"}', "auto", "/small"),
        ('{"method":"eagle3","model":"/head"}', "off", None),
        ("{}", "off", None),
    ],
)
def test_speculation(text: str, speculation: str, model: str | None) -> None:
    config = engine_config(read(f"--speculative-config {text}"), Path("/m"), "m")
    assert (config.speculation, config.speculative_model) == (speculation, model)


def test_speculation_that_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--speculative-config ngram")
    assert "is no JSON object" in capsys.readouterr().err


def test_a_context_length_may_be_left_to_the_server() -> None:
    for text in ("auto", "-1"):
        assert engine_config(read(f"--max-model-len={text}"), Path("/m"), "m").max_model_len is None


def test_yaml_is_read_as_vllm_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: demo\nserved-model-name: [a, b]\nmax_model_len: 4k\ntrust-remote-code: true\nenforce-eager: false\n"
        "compilation-config: {level: 3}\nkv-offloading-size: 1.5\n"
    )
    options = read_file(file, parser())
    assert (options["model"], options["served_model_name"], options["max_model_len"]) == ("demo", ["a", "b"], 4000)
    assert options["enforce_eager"] is False
    assert options["host_cache_bytes"] == 3 * 2**29
    assert [line.split()[0] for line in notes(options)] == ["--trust-remote-code", "--compilation-config"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.toml", "port: 8000", "cannot be read as TOML"),
        ("c.toml", "port: 8000", "a file named .yaml or .yml is read as YAML"),
        ("c.yaml", "a: [", "cannot be read as YAML"),
        ("c.yaml", "- port", "must hold names and values"),
        ("c.yml", "nonsense: 1", "there is no option 'nonsense'"),
    ],
)
def test_a_file_that_is_no_configuration_is_explained(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(OptionsError, match=re.escape(words)):
        read_file(tmp_path / name, parser())


def test_a_missing_file_is_plain(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"none\.yaml: no such file or directory$"):
        read_file(tmp_path / "none.yaml", parser())


def test_the_document_lists_them() -> None:
    rows = dict(re.findall(r"(?m)^\| `--([\w-]+)`.*\| ([^|]+) \|$", DOCS.read_text()))
    assert rows == {name: flag.why for name, flag in (*WITHOUT_EFFECT.items(), *ONLY_WITH.items())}
