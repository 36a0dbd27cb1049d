"""How every command reads its arguments, and says what is wrong with them: the error first, then where to read on."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

MISUSED = 2  # exit status


class Parser(argparse.ArgumentParser):
    """`--max_model_len` is `--max-model-len`; a repeatable option also takes its values at once (`--api-key a b`)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: error: {message}\nsee `{self.prog} --help`\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = None if args is None else self._one_by_one([_dashed(argument) for argument in args])
        parsed, unknown = super().parse_known_args(given, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return parsed, []

    def _one_by_one(self, arguments: list[str]) -> list[str]:
        """Repeatable options once per value. One value alone is theirs until the command has its own argument."""
        has_argument = "--model" in arguments or not self._get_positional_actions()
        spelled: list[str] = []
        list_option, awaits_value = "", False
        for i, argument in enumerate(arguments):
            if argument == "--":
                return spelled + arguments[i:]
            if argument.startswith("-") and len(argument) > 1:
                action = self._option_string_actions.get(argument.partition("=")[0])
                list_option = argument.partition("=")[0] if isinstance(action, argparse._AppendAction) else ""
                awaits_value = "=" not in argument and (action is None or action.nargs != 0)
            elif awaits_value:
                awaits_value = False
            elif list_option and has_argument:
                spelled.append(list_option)
            else:
                has_argument = True
            spelled.append(argument)
        return spelled

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"{argument!r} is one argument too many"
        option = argument.partition("=")[0]
        known = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(option, known, 1, cutoff=0.5)
        return f"there is no option {option}" + (f"; is it {near[0]}?" if near else "")


def examples(*lines: str, after: str = "") -> str:
    """The end of a command's help."""
    return "\n".join(("examples:", *(f"  {line}" for line in lines))) + (f"\n\n{after}" if after else "")


def said(error: Exception) -> str:
    """An error about a file in one plain line."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)


def count(text: str) -> int:
    """`4096`, `4k` (4000), `4K` (4096), `25.6k`; the letters are k, m, g."""
    match = re.fullmatch(r"(-?\d+)|(\d+(?:\.\d+)?)([kmgKMG])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number such as 4096 or 4k")
    if match[1]:
        return int(match[1])
    power = "kmg".index(match[3].lower()) + 1
    return int(float(match[2]) * (1000 if match[3].islower() else 1024) ** power)


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
