"""`hocket batch`: submit files of requests, watch them, read their results, on the SDK.

Results go to stdout, everything else to stderr, so that pipes work.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gateway.cli.batches.rows import CheckedRows, write_prompts
from gateway.cli.batches.view import Watch, complaints, details, rows_done, table, when
from gateway.cli.client_options import add_client_options, explain
from gateway.cli.parser import examples, said
from hocket import (
    APIConnectionError,
    APIStatusError,
    AuthenticationError,
    Batch,
    BatchResult,
    Client,
    HocketError,
    NotFoundError,
    ServiceUnavailableError,
)

FAILED, MISUSED, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130
EXIT_STATUS = """exit status: 0 done; 1 the server refused or is not there; 2 misuse, or a file with bad lines;
3 the batch has ended, and not every row has an answer; 130 interrupted, the batch goes on"""
EXAMPLES = {  # by verb; empty: of the command itself
    "": ("hocket batch submit rows.jsonl --watch -o results.jsonl", "hocket batch status"),
    "submit": (
        "hocket batch submit rows.jsonl --watch -o results.jsonl",
        "hocket batch submit --prompts prompts.txt --max-tokens 64 --watch --text",
    ),
    "status": ("hocket batch status", "hocket batch status ID --watch"),
    "results": ("hocket batch results ID > results.jsonl", "hocket batch results ID OTHER --text"),
    "cancel": ("hocket batch cancel ID", "hocket batch cancel ID --json"),
}
_MAX_FAULTS = 20  # shown; the rest is counted
_WATCH_SECONDS = 0.5
_DEFAULT_LIMIT = 10


class UsageError(Exception):
    """What the user has to change."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = examples(*EXAMPLES[""], after=EXIT_STATUS)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_submit(_verb(verbs, "submit", "upload rows and start them as a batch"))
    status = _verb(verbs, "status", "how batches are doing")
    status.add_argument("id", nargs="?", metavar="ID", help="one batch in detail (default: a table of the recent ones)")
    status.add_argument("--watch", action="store_true", help="follow the batch ID until it is over")
    status.add_argument(
        "-n", "--limit", type=int, default=_DEFAULT_LIMIT, metavar="N", help=f"batches in the table ({_DEFAULT_LIMIT})"
    )
    results = _verb(verbs, "results", "rows that have come back, one JSON line each; also while the batch runs")
    results.add_argument("ids", nargs="+", metavar="ID")
    _add_output(results)
    cancel = _verb(verbs, "cancel", "stop a batch; rows that are done stay done")
    cancel.add_argument("id", metavar="ID")


def _verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    epilog = examples(*EXAMPLES[name], after=EXIT_STATUS)
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=epilog)
    add_client_options(parser.add_argument_group("server"))
    if name != "results":
        parser.add_argument("--json", action="store_true", help="the batch as the server says it, on stdout")
    return parser


def _add_submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="ROWS.jsonl", help="rows in OpenAI's batch format")
    parser.add_argument("--watch", action="store_true", help="follow the batch until it is over")
    parser.add_argument("--window", default="24h", metavar="TIME", help="how long it may take (default: 24h)")
    parser.add_argument(
        "--metadata", action="append", default=[], metavar="KEY=VALUE", help="kept with the batch; repeatable"
    )
    parser.add_argument("--webhook", metavar="URL", help="told when the batch ends, if the server signs webhooks")
    parser.add_argument("--allow-bad-lines", action="store_true", help="submit the good lines of a file with bad ones")
    _add_output(parser)
    group = parser.add_argument_group("instead of a file of rows")
    group.add_argument("--prompts", metavar="FILE", help="plain text, each line a chat of its own; - for stdin")
    group.add_argument("--model", help="default: the first that the server lists")
    group.add_argument("--system", metavar="TEXT", help="system message, before each prompt")
    group.add_argument("--max-tokens", type=int, metavar="N", help="at most this many tokens per answer")
    group.add_argument("--temperature", type=float, help="0 for the likeliest answer; default: the server's")
    group.add_argument("--seed", type=int, help="equal seeds give equal answers")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--text", action="store_true", help="answers to read instead of JSON lines")


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    verbs: dict[str, Callable[[argparse.Namespace, Client], int]] = {
        "submit": submit,
        "status": status,
        "results": results,
        "cancel": cancel,
    }
    try:
        client = Client(args.url, api_key=args.api_key)
    except ValueError as error:
        return _complain(str(error), MISUSED)
    with client:
        try:
            return verbs[args.verb](args, client)
        except UsageError as error:
            return _complain(str(error), MISUSED)
        except HocketError as error:
            return _complain(_explain(error, client), FAILED)
        except BrokenPipeError:
            # Nobody reads any more; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        except OSError as error:
            return _complain(said(error), FAILED)


def _explain(error: HocketError, client: Client) -> str:
    if isinstance(error, NotFoundError) and error.message.startswith("There is no /"):
        return f"the server at {client.options.base_url} has no batches: is it an older one? ({error})"
    if isinstance(error, APIStatusError) and error.status_code < 500 and not isinstance(error, AuthenticationError):
        return error.message
    return explain(error, client)


# ---- submit ----


def submit(args: argparse.Namespace, client: Client) -> int:
    """Raises UsageError, HocketError, OSError."""
    if (args.file is None) == (args.prompts is None):
        raise UsageError("name a file of rows, or a file of prompts with --prompts FILE")
    if args.file is not None and (args.model or args.system or args.max_tokens or args.temperature is not None):
        raise UsageError("--model, --system, --max-tokens and --temperature go with --prompts; rows say it themselves")
    if (args.output or args.text) and not args.watch:
        raise UsageError("results come with the end of the batch: add --watch, or use hocket batch results later")
    metadata = _metadata(args.metadata)
    with _rows(args, client) as file:
        checked = CheckedRows.read(file)
        _judge(checked, args)
        file.seek(0)
        name = args.file.name if args.file is not None else "prompts.jsonl"
        with _upload_bar(checked.num_bytes, name) as show:
            uploaded = client.files.create(file, filename=name, on_progress=show)
    batch = client.batches.create(
        uploaded.id,
        endpoint=checked.endpoint or "",
        completion_window=args.window,
        metadata=metadata,
        webhook_url=args.webhook,
    )
    bad = f", {len(checked.faults):,} of them bad: those get an error" if checked.faults else ""
    _note(f"{batch.id} has been created with {checked.num_rows:,} rows{bad}")
    if not args.watch:
        if args.json:
            _print_json(batch)
        else:
            print(batch.id)
            _note(f"follow it: hocket batch status {batch.id} --watch")
        return 0
    return _watch_to_results(args, client, batch)


@contextmanager
def _rows(args: argparse.Namespace, client: Client) -> Iterator[BinaryIO]:
    """Raises OSError, HocketError."""
    if args.file is not None:
        with args.file.open("rb") as file:
            yield file
        return
    params = {"model": args.model or _first_model(client), "max_tokens": args.max_tokens}
    params |= {"temperature": args.temperature, "seed": args.seed}
    given = {name: value for name, value in params.items() if value is not None}
    with tempfile.TemporaryFile() as file, _text_file(args.prompts) as prompts:
        write_prompts(prompts, given, args.system, file)
        yield file


@contextmanager
def _text_file(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
    else:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            yield file


def _first_model(client: Client) -> str | None:
    models = client.models.list()
    return models[0].id if models else None


def _judge(checked: CheckedRows, args: argparse.Namespace) -> None:
    """Raises UsageError if the rows should not be sent as they are."""
    name = args.file if args.file is not None else args.prompts
    for fault in checked.faults[:_MAX_FAULTS]:
        print(f"{name}:{fault.line}: {fault.message}", file=sys.stderr)
    if len(checked.faults) > _MAX_FAULTS:
        _note(f"and {len(checked.faults) - _MAX_FAULTS:,} more bad lines")
    if checked.trouble is not None:
        hint = ""
        if len(checked.faults) == checked.num_rows > 0:
            hint = f". A file of plain prompts is submitted with --prompts {name}"
        raise UsageError(f"{name}: {checked.trouble}{hint}")
    if checked.faults and not args.allow_bad_lines:
        raise UsageError(
            f"{name}: {len(checked.faults):,} of {checked.num_rows:,} lines are bad. Mend them, or run the others with "
            "--allow-bad-lines"
        )


def _metadata(entries: list[str]) -> dict[str, str] | None:
    metadata = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise UsageError(f"--metadata {entry}: give KEY=VALUE")
        metadata[key] = value
    return metadata or None


@contextmanager
def _upload_bar(num_bytes: int, name: str) -> Iterator[Callable[[int, int | None], None]]:
    columns = TextColumn("uploading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=num_bytes)
        yield lambda sent, total: progress.update(task, completed=sent, total=total)


# ---- status, results, cancel ----


def status(args: argparse.Namespace, client: Client) -> int:
    """Raises UsageError, HocketError."""
    if args.id is None:
        if args.watch:
            raise UsageError("--watch follows one batch: name it")
        batches = list(client.batches.list(limit=args.limit))
        if args.json:
            print(json.dumps([dataclasses.asdict(batch) for batch in batches], indent=2))
        elif batches:
            Console().print(table(batches, time.time()))
        else:
            _note("there are no batches yet; hocket batch submit makes one")
        return 0
    batch = client.batches.retrieve(args.id)
    if args.watch and not batch.is_over:
        batch = _watch(client, batch)
    if args.json:
        _print_json(batch)
    else:
        Console().print(details(batch, time.time()))
        for complaint in complaints(batch):
            _note(complaint)
    return _status_of(batch)


def results(args: argparse.Namespace, client: Client) -> int:
    """Raises HocketError, OSError."""
    batches = [client.batches.retrieve(batch_id) for batch_id in args.ids]
    num_of = _write_results(client, args.ids, args)
    for batch in batches:
        if not batch.is_over:
            total = f" of {batch.request_counts.total:,}" if batch.request_counts.total else ""
            _note(f"{batch.id} is {batch.status}: these are {num_of[batch.id]:,}{total} rows so far")
        elif not num_of[batch.id]:
            _note(f"{batch.id} is {batch.status}, without results")
            for complaint in complaints(batch):
                _note(complaint)
    return max(map(_status_of, batches))


def cancel(args: argparse.Namespace, client: Client) -> int:
    """Raises HocketError."""
    batch = client.batches.cancel(args.id)
    if args.json:
        _print_json(batch)
    else:
        _note(f"{batch.id} is {batch.status}; {rows_done(batch):,} of {batch.request_counts.total:,} rows are done")
    return 0


def _watch_to_results(args: argparse.Namespace, client: Client, batch: Batch) -> int:
    batch = _watch(client, batch)
    counts = batch.request_counts
    _note(f"{batch.status}: {counts.completed:,} of {counts.total:,} rows have an answer, {when(batch, time.time())}")
    for complaint in complaints(batch):
        _note(complaint)
    if args.output or args.text:
        _write_results(client, [batch.id], args)
    elif batch.output_file_id or batch.error_file_id:
        _note(f"read the results: hocket batch results {batch.id}")
    if args.json:
        _print_json(batch)
    return _status_of(batch)


def _watch(client: Client, batch: Batch) -> Batch:
    """Until it is over; also while the server restarts. Raises HocketError, KeyboardInterrupt."""
    asking = client.with_options(max_retries=0)
    try:
        with Watch(Console(stderr=True)) as watch:
            watch.show(batch)
            while not batch.is_over:
                time.sleep(_WATCH_SECONDS)
                try:
                    batch = asking.batches.retrieve(batch.id)
                    watch.show(batch)
                    if watch.is_stalled and (reason := _illness(asking)):
                        watch.trouble(f"the engine does not run: {reason}")
                except (APIConnectionError, ServiceUnavailableError):
                    watch.trouble("the server does not answer; waiting")
    except KeyboardInterrupt:
        _note(
            f"{batch.id} goes on without you. Look again with `hocket batch status {batch.id} --watch`, stop it with "
            f"`hocket batch cancel {batch.id}`"
        )
        raise
    return batch


def _illness(client: Client) -> str | None:
    """What the server says is wrong with itself; None if nothing."""
    try:
        health = client.health()
    except HocketError:
        return None
    return None if health.is_healthy else str(health.details.get("reason") or health.status)


def _status_of(batch: Batch) -> int:
    counts = batch.request_counts
    has_all = batch.status == "completed" and counts.completed == counts.total
    return 0 if has_all or not batch.is_over else INCOMPLETE


def _write_results(client: Client, batch_ids: list[str], args: argparse.Namespace) -> dict[str, int]:
    """To the file, which appears when it is whole, or to stdout. Returns how many rows each batch had."""
    write = _as_text if args.text else _as_line
    num_of = dict.fromkeys(batch_ids, 0)
    num_failed = 0

    def copy(file: TextIO) -> None:
        nonlocal num_failed
        for batch_id in batch_ids:
            for result in client.batches.results(batch_id):
                num_of[batch_id] += 1
                num_failed += not result.is_ok
                file.write(write(result))

    if args.output is None:
        copy(sys.stdout)
        sys.stdout.flush()
    else:
        part = args.output.with_name(args.output.name + ".part")
        with part.open("w", encoding="utf-8") as file:
            copy(file)
        part.replace(args.output)
        failed = f" and {num_failed:,} errors" if num_failed else ""
        _note(f"wrote {sum(num_of.values()) - num_failed:,} answers{failed} to {args.output}")
    return num_of


def _as_line(result: BatchResult) -> str:
    return json.dumps(result.as_line(), ensure_ascii=False) + "\n"


def _as_text(result: BatchResult) -> str:
    said = result.text if result.error is None else f"[{result.error.code}] {result.error.message}"
    return f"── {result.custom_id}\n{said}\n\n"


def _print_json(batch: Batch) -> None:
    print(json.dumps(dataclasses.asdict(batch), indent=2))


def _note(text: str) -> None:
    print(f"hocket batch: {text}", file=sys.stderr, flush=True)


def _complain(message: str, code: int) -> int:
    _note(message)
    return code
