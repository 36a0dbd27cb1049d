"""How arguments are read, and what is said about wrong ones."""

from __future__ import annotations

import argparse
import re

import pytest

from gateway.cli import batch
from gateway.cli.main import COMMANDS, main
from gateway.cli.parser import Parser, count, said

CALLS = [[], *([name] for name in COMMANDS), *(["batch", verb] for verb in batch.EXAMPLES if verb)]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_help_has_two_examples_that_are_understood(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*call, "--help"])
    assert exit_.value.code == 0
    lines = re.findall(r"(?m)^  (hocket .*)$", capsys.readouterr().out.partition("examples:")[2])
    assert len(lines) >= 2
    assert all(line.split()[1 : len(call) + 1] == call or call in ([], ["version"]) for line in lines)


def test_the_error_comes_first_and_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "plan")
    assert said.splitlines() == [
        "hocket plan: error: the following arguments are required: --trace",
        "see `hocket plan --help`",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--gpu-memory-utilisation", "0.9"), "no option --gpu-memory-utilisation; is it --gpu-memory-utiliz"),
        (("serve", "--max_modellen=5"), "no option --max-modellen; is it --max-model-len?"),
        (("serve", "--qqqqq"), "there is no option --qqqqq\n"),
        (("serve", "demo", "other"), "'other' is one argument too many"),
        (("batch", "submit", "--promts", "x"), "no option --promts; is it --prompts?"),
        (("serve", "--max-model-len", "4q"), "'4q' is no number such as 4096 or 4k"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in complaint(capsys, *arguments)


def test_repeatable_options_take_several_values_once_the_argument_is_known() -> None:
    parser = Parser(prog="p", argument_default=argparse.SUPPRESS)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--key", action="append")
    parser.add_argument("--fast", action="store_true")

    def read(line: str) -> tuple[str | None, list[str]]:
        args = parser.parse_args(line.split())
        return args.model, args.key

    assert read("m --key a b --fast") == ("m", ["a", "b"])
    assert read("--fast m --key=a b") == ("m", ["a", "b"])
    assert read("--key a b --model m") == ("m", ["a", "b"])
    assert read("--key a m") == ("m", ["a"])
    assert read("--key a --key b -- m") == ("m", ["a", "b"])


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("-1", -1), ("4k", 4000), ("4K", 4096), ("25.6k", 25_600), ("1m", 10**6)]
)
def test_numbers_may_be_short(text: str, number: int) -> None:
    assert count(text) == number


def test_an_error_about_a_file_is_plain() -> None:
    assert said(FileNotFoundError(2, "No such file or directory", "rows.jsonl")) == (
        "rows.jsonl: no such file or directory"
    )
    assert said(ValueError("odd")) == "odd"
