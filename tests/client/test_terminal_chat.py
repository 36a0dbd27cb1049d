"""`hocket chat`: on a terminal, and with prompts from a pipe."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from fakes.chat_server import FakeChatServer
from fakes.eventually import wait_until
from fakes.http_script import Pieces, Script, chat_events, event, refusal, streamed
from gateway.cli import chat as cli
from hocket import ChatParams, Client

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60.0
CTRL_C, CTRL_D = "\x03", "\x04"


def arguments(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(argv)


def run_with_stdin(text: str, monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return cli.run(arguments(*argv))


def test_typing_is_told_but_not_what_and_the_session_ends_with_the_chat(server: FakeChatServer) -> None:
    with Client(server.url) as client:
        chat = cli.Chat(client, cli.PlainView(), ["demo"], "demo", ChatParams(), None)
        chat.typing("")
        chat.typing("/hel")
        chat.typing("Hel")
        wait_until(lambda: server.notices)
        chat.take("Hello!")
        chat.close()
    typing, ended = server.notices
    session_id = server.received[-1].body["session_id"]
    assert typing.body == {"session_id": session_id, "event": "typing"}
    assert ended.path == f"/v1/sessions/{session_id}"


def test_drafts_are_sent_if_the_user_wants(server: FakeChatServer) -> None:
    with Client(server.url) as client:
        chat = cli.Chat(client, cli.PlainView(), ["demo"], "demo", ChatParams(), "Be brief.", sends_drafts=True)
        chat.typing("Hel")
        wait_until(lambda: server.notices)
        chat.close()
    sent = server.notices[0].body
    assert (sent["messages"], sent["draft"]) == ([{"role": "system", "content": "Be brief."}], "Hel")


def test_each_line_of_a_pipe_is_a_turn_of_one_conversation(
    server: FakeChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_with_stdin("Hello!\n\nAnd you?\n", monkeypatch, "--url", server.url, "--system", "Be brief.")
    assert status == 0
    assert capsys.readouterr() == ("You said: Hello!\nYou said: And you?\n", "")
    assert [(m["role"], m["content"]) for m in server.received[-1].body["messages"]] == [
        ("system", "Be brief."),
        ("user", "Hello!"),
        ("assistant", "You said: Hello!"),
        ("user", "And you?"),
    ]


def test_flags_become_parameters(server: FakeChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model", "other", "--temperature", "0", "--max-tokens", "9", "--seed", "3", "--api-key", "secret"]
    server.api_key = "secret"
    assert run_with_stdin("Hello!", monkeypatch, "--url", server.url, *flags) == 0
    sent = server.received[-1].body
    assert {name: sent[name] for name in ("model", "temperature", "max_tokens", "seed")} == {
        "model": "other",
        "temperature": 0,
        "max_tokens": 9,
        "seed": 3,
    }


def test_commands_work_from_a_pipe_too(
    server: FakeChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "One\n/reset\n/model other\n/system Be brief.\nTwo\n/quit\nThree\n"
    assert run_with_stdin(lines, monkeypatch, "--url", server.url) == 0
    out, err = capsys.readouterr()
    assert out == "You said: One\nYou said: Two\n"
    assert "* other" in err
    assert server.received[-1].body["model"] == "other"
    assert [m["content"] for m in server.received[-1].body["messages"]] == ["Be brief.", "Two"]


def test_an_unknown_command_is_not_sent_to_the_model(
    server: FakeChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with_stdin("/rest\n/etc/hosts?\n", monkeypatch, "--url", server.url) == 1
    assert capsys.readouterr() == (
        "You said: /etc/hosts?\n",
        "hocket chat: /rest is not a command; /help lists them\n",
    )


def test_an_error_ends_a_script(
    server: FakeChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.max_turns = 1
    assert run_with_stdin("One\nTwo\nThree\n", monkeypatch, "--url", server.url) == 1
    out, err = capsys.readouterr()
    assert out == "You said: One\n"
    assert "HTTP 400: Too many messages." in err


def test_no_server_is_said_plainly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeChatServer() as gone:
        url = gone.url
    assert run_with_stdin("Hello!", monkeypatch, "--url", url) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"no server answers at {url}. Start one with `hocket serve`" in err


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--model", "gpt-9"], "gpt-9 is not served; there is: demo, other"),
        (["--api-key", "wrong"], "wants an API key"),
        (["--url", "localhost"], "base_url must start with http"),
    ],
)
def test_what_cannot_work_is_said_at_the_start(
    argv: list[str],
    complaint: str,
    server: FakeChatServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.api_key = "secret"
    url = [] if "--url" in argv else ["--url", server.url]
    key = [] if "--api-key" in argv else ["--api-key", "secret"]
    assert run_with_stdin("Hello!", monkeypatch, *url, *key, *argv) == 1
    assert complaint in capsys.readouterr().err


class Screen:
    """A chat on a terminal that is only remembered."""

    def __init__(self, script: Script) -> None:
        self.console = Console(file=io.StringIO(), width=100)
        self.client = Client("http://server", transport=script)
        view = cli.TerminalView(self.console)
        self.chat = cli.Chat(self.client, view, ["demo", "other"], "demo", ChatParams(), None)

    def take(self, line: str) -> str:
        """What appears after this line was typed."""
        file = self.console.file
        assert isinstance(file, io.StringIO)
        start = file.tell()
        self.chat.take(line)
        return file.getvalue()[start:]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def screen(script: Script) -> Iterator[Screen]:
    screen = Screen(script)
    with screen.client:
        yield screen


def test_an_answer_is_followed_by_its_timings(screen: Screen, script: Script) -> None:
    script.answers.append(streamed(*chat_events(["Hi", " there."])))
    answer, timings = screen.take("Hello!").splitlines()
    assert answer == "Hi there."
    assert timings.startswith("TTFT ")
    assert timings.endswith(" tokens/s · 2 tokens")


def test_thinking_comes_before_the_answer_and_is_no_part_of_it(screen: Screen, script: Script) -> None:
    deltas = [{"reasoning_content": "Hm, "}, {"reasoning_content": "[bold] so."}, {"content": "Hi."}]
    chunks = [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    script.answers += [streamed(*chunks, event("[DONE]")), streamed(*chat_events(["Yes."]))]
    assert screen.take("Hello!").startswith("Hm, [bold] so.\n\nHi.\n")
    screen.take("And?")
    assert [m["content"] for m in script.bodies[1]["messages"]] == ["Hello!", "Hi.", "And?"]


def test_an_answer_cut_at_the_limit_says_so(screen: Screen, script: Script) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}]}
    script.answers.append(streamed(event(chunk), event("[DONE]")))
    assert "cut off at the token limit" in screen.take("Hello!")


def test_interrupting_stops_the_answer_and_keeps_what_came(screen: Screen, script: Script) -> None:
    body = Pieces(*chat_events(["Once upon", " a time"])[:3], KeyboardInterrupt(), b"never read")
    script.answers += [httpx.Response(200, stream=body), streamed(*chat_events(["Sorry."]))]
    shown = screen.take("Tell me a story.")
    assert shown.startswith("Once upon a time\nstopped · TTFT ")
    assert body.is_closed
    assert screen.take("Too long!").startswith("Sorry.")
    assert [m["content"] for m in script.bodies[1]["messages"]] == ["Tell me a story.", "Once upon a time", "Too long!"]


def test_a_question_without_an_answer_is_not_kept(screen: Screen, script: Script) -> None:
    script.answers += [refusal(400), streamed(*chat_events(["Hi."]))]
    with pytest.raises(Exception, match="HTTP 400"):
        screen.take("One")
    screen.take("Two")
    assert [m["content"] for m in script.bodies[1]["messages"]] == ["Two"]


def test_a_model_cannot_control_the_terminal(screen: Screen, script: Script) -> None:
    script.answers.append(streamed(*chat_events(["a\x1b[2Jb\r\x9bc\td\n[bold]e"])))
    assert screen.take("Hello!").splitlines()[:2] == ["a[2Jbc\td", "[bold]e"]


def test_broken_characters_from_the_terminal_do_not_stop_the_chat(screen: Screen, script: Script) -> None:
    script.answers.append(streamed(*chat_events(["Hi."])))
    screen.take("Hell\udcff")
    assert script.bodies[0]["messages"][0]["content"] == "Hell?"


def test_models_are_listed_and_switched(screen: Screen) -> None:
    assert screen.take("/model") == "* demo\n  other\n"
    assert screen.take("/model other") == "  demo\n* other\n"
    assert "not served" in screen.take("/model gpt-9")
    assert screen.chat.model == "other"


def test_the_system_message_is_shown_and_set(screen: Screen) -> None:
    assert screen.take("/system") == "There is no system message.\n"
    assert screen.take("/system Be brief.") == "System message: Be brief.\n"
    assert screen.take("/system") == "System message: Be brief.\n"


def test_help_names_every_command(screen: Screen) -> None:
    shown = screen.take("/help")
    assert all(name in shown for name in ("/reset", "/system", "/model", "/save", "/help", "/quit"))


def test_a_conversation_is_saved_and_no_other_file_is_overwritten(
    screen: Screen, script: Script, tmp_path: Path
) -> None:
    script.answers += [streamed(*chat_events(["Grüß"])), streamed(*chat_events(["Gott"]))]
    path, precious = tmp_path / "chat.json", tmp_path / "precious"
    precious.write_text("precious")
    for line in ("One", f"/save {path}", "Two"):
        screen.take(line)
    assert "Saved to" in screen.take(f"/save {path}")
    assert json.loads(path.read_text()) == {
        "model": "demo",
        "messages": [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "Grüß"},
            {"role": "user", "content": "Two"},
            {"role": "assistant", "content": "Gott"},
        ],
    }
    assert "Not saved" in screen.take(f"/save {precious}")
    assert "Not saved" in screen.take(f"/save {tmp_path}/no/such/folder")
    assert "Name a file" in screen.take("/save")
    assert precious.read_text() == "precious"


class Terminal:
    """`hocket chat` in a process of its own, on a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        self._fd, other = pty.openpty()
        program = """if True:
            import argparse, fcntl, signal, sys, termios
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it as a signal
            signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a background shell ignores it
            from gateway.cli import chat
            parser = argparse.ArgumentParser()
            chat.add_arguments(parser)
            sys.exit(chat.run(parser.parse_args()))
        """
        path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "--url", url],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "PYTHONPATH": path, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
        )
        os.close(other)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def expect(self, text: str) -> None:
        """Waits until this was shown, after what was expected before."""
        until = time.monotonic() + DEADLINE_SECONDS
        while text not in self.shown:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{text!r} was not shown, but {self.shown!r}"
            try:
                self.shown += os.read(self._fd, 65536).decode(errors="replace")
            except OSError:  # it has exited
                pytest.fail(f"{text!r} was not shown, but {self.shown!r}")
        self.shown = self.shown.split(text, 1)[1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        os.close(self._fd)


@pytest.fixture
def terminal(server: FakeChatServer) -> Iterator[Terminal]:
    terminal = Terminal(server.url)
    yield terminal
    terminal.close()


def test_on_a_terminal_ctrl_c_aborts_the_request_and_the_chat_goes_on(
    server: FakeChatServer, terminal: Terminal
) -> None:
    server.hold_after = 3
    terminal.expect("demo at ")
    terminal.expect("> ")
    terminal.press("Hello!\r")
    terminal.expect("You said:")
    terminal.press(CTRL_C)
    terminal.expect("stopped")
    assert server.aborted.wait(DEADLINE_SECONDS)
    server.hold_after = None
    terminal.expect("> ")
    terminal.press("Still there?")
    wait_until(lambda: any(notice.body.get("event") == "typing" for notice in server.notices))
    terminal.press("\r")
    terminal.expect("You said: Still there?")
    terminal.expect("TTFT")
    terminal.expect("> ")
    terminal.press(CTRL_D)
    assert terminal.process.wait(DEADLINE_SECONDS) == 0
    assert [m["content"] for m in server.received[-1].body["messages"]] == ["Hello!", "You said:", "Still there?"]
