"""`hocket chat`: a chat in the terminal, on the SDK. If stdin is no terminal: one prompt per line, plain answers."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from rich.console import Console

from gateway.cli.client_options import add_client_options, explain
from gateway.cli.parser import examples, said
from hocket import (
    ChatCompletion,
    ChatParams,
    Client,
    HocketError,
    Message,
)

INTERRUPTED = 130  # what shells expect after Ctrl-C
# A model can print anything; what moves the cursor or talks to the terminal stays out of it.
CONTROL_CHARACTERS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = examples(
        "hocket chat",
        'hocket chat --url http://10.0.0.5:8000 --api-key SECRET --system "Answer in one sentence."',
    )
    add_client_options(parser)
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--system", metavar="TEXT", help="system message, before the conversation")
    parser.add_argument("--temperature", type=float, help="0 for the likeliest answer; default: the server's")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="at most this many tokens per answer")
    parser.add_argument("--seed", type=int, help="equal seeds give equal answers")
    parser.add_argument(
        "--drafts",
        action="store_true",
        help="send what you type while you type, so that long messages are answered sooner (default: only that you do)",
    )


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    try:
        client = Client(args.url, api_key=args.api_key)
    except ValueError as error:
        return complain(str(error))
    with client:
        try:
            models = [model.id for model in client.with_options(max_retries=0).models.list()]
        except HocketError as error:
            return complain(explain(error, client))
        model = args.model or (models[0] if models else None)
        if model not in models:
            return complain(f"{model or 'A model'} is not served; there is: {', '.join(models) or 'nothing'}")
        params = ChatParams(temperature=args.temperature, max_tokens=args.max_tokens, seed=args.seed)
        is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        view: View = TerminalView(Console()) if is_interactive else PlainView()
        with closing(Chat(client, view, models, model, params, args.system, args.drafts)) as chat:
            return converse(chat) if is_interactive else answer_lines(chat, sys.stdin)


def complain(message: str) -> int:
    print(f"hocket chat: {message}", file=sys.stderr)
    return 1


def converse(chat: Chat) -> int:
    """Until the user leaves. Ctrl-C drops what is being typed, Ctrl-D leaves."""
    commands = WordCompleter(list(chat.commands), sentence=True)
    prompts: PromptSession[str] = PromptSession(completer=commands, complete_while_typing=True)
    prompts.default_buffer.on_text_changed += lambda buffer: chat.typing(buffer.text)
    chat.view.note(f"{chat.model} at {chat.client.options.base_url}. /help lists commands, Ctrl-C stops an answer.")
    while True:
        try:
            line = prompts.prompt([("bold ansigreen", "> ")])
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        try:
            chat.take(line)
        except KeyboardInterrupt:  # a second one, while the first was being seen to
            continue
        except HocketError as error:
            chat.view.error(explain(error, chat.client))
        if chat.is_over:
            return 0


def answer_lines(chat: Chat, lines: Iterable[str]) -> int:
    """Until the first error: what follows would be answered in a different conversation than its author meant."""
    if isinstance(lines, io.TextIOWrapper):
        lines.reconfigure(errors="replace")
    try:
        for line in lines:
            chat.take(line)
            if chat.is_over:
                break
    except HocketError as error:
        return complain(explain(error, chat.client))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 1 if chat.view.has_failed else 0


class View(Protocol):
    """Where a chat appears."""

    stops_on_interrupt: bool
    has_failed: bool

    def text(self, text: str) -> None: ...

    def thinking(self, text: str) -> None:
        """What comes before the text."""

    def end(self, answer: ChatCompletion, was_stopped: bool) -> None: ...

    def note(self, text: str) -> None: ...

    def error(self, text: str) -> None: ...


class TerminalView:
    stops_on_interrupt = True
    has_failed = False

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_thinking = False

    def thinking(self, text: str) -> None:
        self._is_thinking = True
        shown = text.translate(CONTROL_CHARACTERS)
        self._console.print(shown, style="dim", end="", soft_wrap=True, markup=False, highlight=False)

    def text(self, text: str) -> None:
        self._end_thinking("\n\n")
        # Not through rich, which would expand tabs as if each piece began a line.
        print(text.translate(CONTROL_CHARACTERS), end="", file=self._console.file, flush=True)

    def end(self, answer: ChatCompletion, was_stopped: bool) -> None:
        self._end_thinking("")
        self._console.out("")
        self.note(summary(answer, was_stopped))

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)

    def error(self, text: str) -> None:
        self._console.print(text, style="red", markup=False, highlight=False)

    def _end_thinking(self, after: str) -> None:
        if self._is_thinking:
            print(end=after, file=self._console.file)
        self._is_thinking = False


class PlainView:
    """Answers to stdout, everything else to stderr."""

    stops_on_interrupt = False

    def __init__(self) -> None:
        self.has_failed = False

    def text(self, text: str) -> None:
        print(text, end="", flush=True)

    def thinking(self, text: str) -> None:
        pass

    def end(self, answer: ChatCompletion, was_stopped: bool) -> None:
        print(flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def error(self, text: str) -> None:
        self.has_failed = True
        complain(text)


def summary(answer: ChatCompletion, was_stopped: bool) -> str:
    timings = answer.timings
    parts = ["stopped"] if was_stopped else []
    if answer.finish_reason == "length":
        parts.append("cut off at the token limit")
    if timings.ttft_ms is not None:
        parts.append(f"TTFT {timings.ttft_ms:.0f} ms")
    if timings.tokens_per_second is not None:
        parts.append(f"{timings.tokens_per_second:.1f} tokens/s")
    if answer.usage is not None:
        parts.append(f"{answer.usage.completion_tokens} tokens")
    return " · ".join(parts)


class Chat:
    """A conversation, and the commands that steer it."""

    def __init__(
        self,
        client: Client,
        view: View,
        models: list[str],
        model: str,
        params: ChatParams,
        system: str | None,
        sends_drafts: bool = False,
    ) -> None:
        self.client = client
        self.view = view
        self.models = models
        self.model = model
        self.is_over = False
        self._params = params
        self._system = system
        self._sends_drafts = sends_drafts
        self._turns: list[Message] = []
        self._session = client.session()
        self._saved: set[Path] = set()  # only these may be overwritten
        self.commands: dict[str, tuple[str, Callable[[str], None]]] = {
            "/reset": ("forget the conversation", self._reset),
            "/system": ("TEXT: set the system message; without TEXT: show it", self._set_system),
            "/model": ("NAME: switch to another model; without NAME: list them", self._set_model),
            "/save": ("FILE: write the conversation as JSON", self._save),
            "/help": ("this list", self._help),
            "/quit": ("leave; so does Ctrl-D", self._quit),
        }

    @property
    def messages(self) -> list[Message]:
        return [*([Message("system", self._system)] if self._system else []), *self._turns]

    def typing(self, line: str) -> None:
        """The user has come so far with the next line. Returns at once and never raises."""
        text = line.encode("utf-8", "replace").decode().lstrip()
        if text and not text.startswith("/"):
            self._session.messages[:] = self.messages
            self._session.typing(text if self._sends_drafts else None)

    def close(self) -> None:
        """The server may forget the conversation."""
        self._session.close()

    def take(self, line: str) -> None:
        """One line of the user: a command, or something for the model. Raises HocketError."""
        line = line.encode("utf-8", "replace").decode().strip()  # a terminal can deliver lone surrogates
        name, _, argument = line.partition(" ")
        if name in self.commands:
            self.commands[name][1](argument.strip())
        elif line.startswith("/") and "/" not in name[1:]:
            self.view.error(f"{name} is not a command; /help lists them")
        elif line:
            self._ask(line)

    def _ask(self, question: str) -> None:
        """An answer that is stopped or breaks off stays in the conversation as far as it came."""
        asked = Message("user", question)
        params: ChatParams = {**self._params, "model": self.model}
        self._session.messages[:] = self.messages
        stream = self._session.chat(question, **params)
        was_stopped = False
        try:
            with stream:
                for chunk in stream:
                    if chunk.thinking:
                        self.view.thinking(chunk.thinking)
                    if chunk.text:
                        self.view.text(chunk.text)
        except KeyboardInterrupt:
            if not self.view.stops_on_interrupt:
                raise
            was_stopped = True
        finally:
            answer = stream.snapshot
            if answer.text:
                self._turns += [asked, answer.message]
            if answer.choices or was_stopped:
                self.view.end(answer, was_stopped)

    def _reset(self, _: str) -> None:
        self._turns.clear()
        self._session.close()
        self._session = self.client.session()
        self.view.note("The conversation is forgotten.")

    def _set_system(self, text: str) -> None:
        self._system = text or self._system
        self.view.note(f"System message: {self._system}" if self._system else "There is no system message.")

    def _set_model(self, name: str) -> None:
        if name and name not in self.models:
            self.view.error(f"{name} is not served; there is: {', '.join(self.models)}")
            return
        self.model = name or self.model
        self.view.note("\n".join(f"{'*' if model == self.model else ' '} {model}" for model in self.models))

    def _save(self, name: str) -> None:
        if not name:
            self.view.error("Name a file: /save chat.json")
            return
        path = Path(name).expanduser().absolute()
        content = {"model": self.model, "messages": [dataclasses.asdict(message) for message in self.messages]}
        try:
            with path.open("w" if path in self._saved else "x", encoding="utf-8") as file:
                file.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            self.view.error(f"Not saved: {said(error)}")
            return
        self._saved.add(path)
        self.view.note(f"Saved to {path}.")

    def _help(self, _: str) -> None:
        self.view.note("\n".join(f"{name:8} {text}" for name, (text, _run) in self.commands.items()))

    def _quit(self, _: str) -> None:
        self.is_over = True
