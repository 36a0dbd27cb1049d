"""`hocket batch`: what a user types, and reads."""

from __future__ import annotations

import io
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fakes.batch_server import FakeBatch, FakeBatchServer
from gateway.cli import batch as cli
from gateway.cli.batches import view as batch_view
from gateway.cli.main import INTERRUPTED, main
from hocket import Batch, BatchError, BatchErrors, BatchUsage, RequestCounts


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_WATCH_SECONDS", 0)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def hocket(batch_server: FakeBatchServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOCKET_BASE_URL", batch_server.url)
    return lambda *words: main(["batch", *map(str, words)])


def row(custom_id: Any = "a", prompt: str = "x", **changes: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}]}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **changes}


def write_rows(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows))
    return path


ROWS = [row(f"row {n}", f"number {n}") for n in range(5)]


def test_submit_prints_the_id_alone_on_stdout(
    hocket: Any, batch_server: FakeBatchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hocket("submit", write_rows(tmp_path, *ROWS), "--metadata", "job=7", "--window", "1h") == 0
    out, err = capsys.readouterr()
    (batch,) = batch_server.batches.values()
    assert out == f"{batch.id}\n"
    assert f"{batch.id} has been created with 5 rows" in err
    assert f"hocket batch status {batch.id} --watch" in err
    assert (batch.body["metadata"], batch.body["completion_window"]) == ({"job": "7"}, "1h")
    assert [line["custom_id"] for line in batch.rows] == [f"row {n}" for n in range(5)]


def test_watch_follows_to_the_end_and_writes_the_results(
    hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hocket("submit", write_rows(tmp_path, *ROWS), "--watch", "-o", tmp_path / "out.jsonl") == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == [f"row {n}" for n in range(5)]
    assert lines[0]["response"]["body"]["choices"][0]["message"]["content"].startswith("You said: number")
    out, err = capsys.readouterr()
    assert out == ""
    assert "completed: 5 of 5 rows have an answer, took 60 s" in err
    assert f"wrote 5 answers to {tmp_path / 'out.jsonl'}" in err


def test_rows_that_fail_are_counted_and_change_the_exit_status(
    hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path, row("good"), row("bad", "refuse"))
    assert hocket("submit", rows, "--watch", "--text") == cli.INCOMPLETE
    out, err = capsys.readouterr()
    assert out == "── good\nYou said: x\n\n── bad\n[refused] No.\n\n"
    assert "completed: 1 of 2 rows have an answer" in err


def test_prompts_become_rows(
    hocket: Any, batch_server: FakeBatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("Hello!\n\nWhat is 7 + 5?\n")
    assert hocket("submit", "--prompts", path, "--max-tokens", 9, "--system", "Be brief.", "--temperature", 0) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe\n"))
    assert hocket("submit", "--prompts", "-", "--model", "other") == 0
    first, second = batch_server.batches.values()
    assert [line["custom_id"] for line in first.rows] == ["line-1", "line-3"]
    assert first.rows[1]["body"] == {
        "model": "demo",
        "max_tokens": 9,
        "temperature": 0,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 7 + 5?"}],
    }
    assert second.rows[0]["body"]["model"] == "other"


BAD_LINES = [
    ("{", "is not JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("[]", "not a JSON object"),
    (row(7), "custom_id must be a string"),
    (row(""), "custom_id must be a string"),
    (row("ok"), "custom_id 'ok' is that of line 1, too"),
    (row("b", method="GET"), 'method must be "POST"'),
    (row("c", url="/v1/moderations"), "url must be"),
    (row("d", body="x"), "body must be an object with 'messages'"),
    (row("e", url="/v1/completions"), "body must be an object with 'prompt'"),
    (row("f", url="/v1/completions", body={"prompt": "x"}), "a batch has one"),
    (row("g", body={"messages": [], "stream": True}), "must not ask for a stream"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD_LINES)
def test_bad_lines_are_named_by_number_before_anything_is_sent(
    line: Any,
    complaint: str,
    hocket: Any,
    batch_server: FakeBatchServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = write_rows(tmp_path, row("ok"), "", line)
    assert hocket("submit", rows) == cli.MISUSED
    err = capsys.readouterr().err
    assert f"{rows}:3: " in err
    assert complaint in err
    assert "1 of 2 lines are bad" in err
    assert batch_server.seen == []
    assert hocket("submit", rows, "--allow-bad-lines") == 0 or complaint in ("is not JSON", "nested too deeply")
    err = capsys.readouterr().err
    assert "has been created with 2 rows, 1 of them bad: those get an error" in err or "created" not in err


def test_many_bad_lines_are_counted(hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hocket("submit", write_rows(tmp_path, row("ok"), *["Hello"] * 25)) == cli.MISUSED
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 22
    assert err[-2] == "hocket batch: and 5 more bad lines"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["submit"], "name a file of rows"),
        (["submit", "rows.jsonl", "--prompts", "x.txt"], "name a file of rows"),
        (["submit", "rows.jsonl", "--model", "demo"], "go with --prompts"),
        (["submit", "rows.jsonl", "-o", "out"], "add --watch"),
        (["submit", "rows.jsonl", "--metadata", "job"], "give KEY=VALUE"),
        (["status", "--watch"], "name it"),
    ],
)
def test_misuse_says_what_to_do(
    words: list[str], complaint: str, hocket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hocket(*words) == cli.MISUSED
    assert complaint in capsys.readouterr().err


def test_files_that_cannot_be_batches(hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("Hello!\nHow are you?\n")
    assert hocket("submit", path) == cli.MISUSED
    assert f"submitted with --prompts {path}" in capsys.readouterr().err
    path.write_text("\n")
    assert hocket("submit", path) == cli.MISUSED
    assert "there is no row in it" in capsys.readouterr().err
    path.write_text("".join(json.dumps(row(str(n))) + "\n" for n in range(50_001)))
    assert hocket("submit", path) == cli.MISUSED
    assert "a batch has at most 50,000 rows" in capsys.readouterr().err
    assert hocket("submit", tmp_path / "absent.jsonl") == cli.FAILED
    assert "no such file" in capsys.readouterr().err


def test_status_is_a_table_or_one_in_detail(
    hocket: Any, batch_server: FakeBatchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hocket("status") == 0
    assert "there are no batches yet" in capsys.readouterr().err
    for _ in range(3):
        hocket("submit", write_rows(tmp_path, *ROWS), "--metadata", "job=7")
    ids = list(batch_server.batches)
    capsys.readouterr()
    assert hocket("status", "-n", 2) == 0
    table = capsys.readouterr().out
    assert [word in table for word in (*ids, "in_progress", "0/5")] == [False, True, True, True, True]
    assert hocket("status", ids[0]) == 0
    detail = capsys.readouterr().out
    for word in (ids[0], "2 of 5 done", "4 in, 6 out", "job=7"):
        assert word in detail
    assert hocket("status", ids[0], "--watch") == 0
    assert "completed" in capsys.readouterr().out
    assert hocket("status", ids[0], "--json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "completed"
    assert hocket("status", "--json") == 0
    assert [batch["id"] for batch in json.loads(capsys.readouterr().out)] == ids[::-1]


def test_results_come_while_the_batch_runs(
    hocket: Any, batch_server: FakeBatchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hocket("submit", write_rows(tmp_path, *ROWS))
    batch_id = capsys.readouterr().out.strip()
    batch_server.rows_per_look = 1
    assert hocket("results", batch_id) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["custom_id"] for line in out.splitlines()] == ["row 4", "row 3", "row 2"]
    assert "is in_progress: these are 3 of 5 rows so far" in err
    assert hocket("results", batch_id, "-o", tmp_path / "out") == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 5
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


def test_results_of_several_batches_come_one_after_the_other(
    hocket: Any, batch_server: FakeBatchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch_server.rows_per_look = 5
    for prompt in ("one", "two", "refuse"):
        hocket("submit", write_rows(tmp_path, row(prompt, prompt)))
    ids = capsys.readouterr().out.split()
    assert hocket("results", *ids) == cli.INCOMPLETE
    assert [json.loads(line)["custom_id"] for line in capsys.readouterr().out.splitlines()] == ["one", "two", "refuse"]
    assert hocket("results", *ids, "-o", tmp_path / "out") == cli.INCOMPLETE
    assert "wrote 2 answers and 1 errors" in capsys.readouterr().err


def test_cancel_and_what_comes_after(
    hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_server: FakeBatchServer
) -> None:
    hocket("submit", write_rows(tmp_path, *ROWS))
    batch_id = capsys.readouterr().out.strip()
    assert hocket("cancel", batch_id) == 0
    assert "is cancelling; 0 of 5 rows are done" in capsys.readouterr().err
    assert hocket("cancel", batch_id) == cli.FAILED
    assert "Cannot cancel a batch that is cancelled" in capsys.readouterr().err
    assert hocket("results", batch_id) == cli.INCOMPLETE
    assert "is cancelled, without results" in capsys.readouterr().err
    assert hocket("status", "batch_x") == cli.FAILED
    assert capsys.readouterr().err == "hocket batch: No such object: batch_x\n"


def test_a_batch_that_failed_says_why(
    hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_server: FakeBatchServer
) -> None:
    def fail(batch: FakeBatch) -> None:
        batch.status = "failed"
        batch.errors = [{"code": "invalid", "message": "the model is unknown", "line": 2}]

    batch_server.on_look = fail
    assert hocket("submit", write_rows(tmp_path, *ROWS), "--watch") == cli.INCOMPLETE
    err = capsys.readouterr().err
    assert "failed: 0 of 5 rows" in err
    assert "line 2: the model is unknown" in err


def test_ctrl_c_leaves_the_batch_and_says_so(
    hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_server: FakeBatchServer
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.cli.batch.time.sleep", interrupt)
        assert hocket("submit", write_rows(tmp_path, *ROWS), "--watch") == INTERRUPTED
    (batch,) = batch_server.batches.values()
    assert (
        f"{batch.id} goes on without you. Look again with `hocket batch status {batch.id} --watch`"
        in capsys.readouterr().err
    )
    assert batch.status == "in_progress"


def test_no_server_is_said_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hocket._connection.time.sleep", lambda seconds: None)
        assert main(["batch", "status", "--url", url]) == cli.FAILED
        assert f"no server answers at {url}" in capsys.readouterr().err
    assert main(["batch", "status", "--url", "nonsense"]) == cli.MISUSED


# ---- how it looks ----


def shown(renderable: Any) -> str:
    console = Console(width=160, file=io.StringIO(), force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def a_batch(**changes: Any) -> Batch:
    counts = RequestCounts(total=2000, completed=500, failed=3)
    return Batch(**{"id": "batch_1", "status": "in_progress", "created_at": 1000, "request_counts": counts} | changes)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (45.4, "45 s"), (120, "2 min"), (7200, "2 h"), (7500, "2 h 5 min"), (400_000, "5 d")],
)
def test_durations_are_as_exact_as_one_cares_to_know(seconds: float, text: str) -> None:
    assert batch_view.duration(seconds) == text


def test_a_row_of_the_table_fits_a_narrow_terminal_with_its_id_whole() -> None:
    batch_id = "batch_" + "0123456789ab" * 2
    running = a_batch(id=batch_id, expires_at=8200)
    console = Console(width=80, file=io.StringIO())
    console.print(batch_view.table([running, a_batch(status="completed", completed_at=1040)], now=1060))
    _, first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert re.split(r" +", first.strip(), maxsplit=4) == [
        batch_id,
        "in_progress",
        "503/2,000",
        "3",
        "1 h 59 min left",
    ]
    assert second.rstrip().endswith("ended 20 s ago")
    assert "took 80 s" in shown(batch_view.details(a_batch(status="completed", completed_at=1080), now=2000))


def test_rates_are_those_of_the_last_half_minute() -> None:
    rates = batch_view.Rates()
    assert (rates.rows, rates.tokens) == (0, 0)
    for second in range(61):
        done = min(second, 30) + 4 * max(0, second - 30)
        counts = RequestCounts(total=1000, completed=done)
        rates.add(second, a_batch(request_counts=counts, usage=BatchUsage(output_tokens=10 * done)))
    assert (rates.rows, rates.tokens) == (4, 40)


def test_a_watch_that_stalls_asks_what_is_wrong(
    hocket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_server: FakeBatchServer
) -> None:
    batch_server.rows_per_look = 0
    batch_server.illness = "the engine failed: no memory [8]"

    def mend(batch: FakeBatch) -> None:
        if "GET /health" in batch_server.seen:
            batch_server.rows_per_look = 5

    batch_server.on_look = mend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_view, "_STALL_SECONDS", 0.0)
        assert hocket("submit", write_rows(tmp_path, *ROWS), "--watch") == 0
    assert "the engine does not run: the engine failed: no memory [8]" in capsys.readouterr().err


def test_only_the_first_complaints_are_printed() -> None:
    errors = BatchErrors(data=tuple(BatchError(message="bad", line=n) for n in range(1, 30)))
    said = batch_view.complaints(a_batch(errors=errors))
    assert (said[0], said[-1], len(said)) == ("line 1: bad", "and 19 more", 11)


def test_the_bar_of_a_terminal_shows_rows_rates_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 10.0))
    monkeypatch.setattr("gateway.cli.batches.view.time.monotonic", lambda: next(now))
    watch = batch_view.Watch(Console(file=io.StringIO()))
    assert not watch.__enter__()._progress.live.is_started
    for done in (400, 500):
        counts = RequestCounts(total=2000, completed=done)
        watch.show(a_batch(request_counts=counts, usage=BatchUsage(output_tokens=done * 7)))
    batch = a_batch(request_counts=RequestCounts(total=2000, completed=500))
    assert watch.pace(batch) == "10.0 rows/s, 70 tokens/s, done in 2 min"
