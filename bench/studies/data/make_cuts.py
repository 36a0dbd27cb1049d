"""Makes the CSV files beside this one: python -m bench.studies.data.make_cuts FOLDER

FOLDER holds the project's normalised workload data; README.md says which files of it, and whose they are.
The same folder gives the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
HASH_BLOCK = 256  # tokens per block id of the LooGLE file
MAX_GAP_S = 1800.0  # a longer pause between turns is a new visit

Row = dict[str, str]


def read(folder: Path, name: str) -> list[Row]:
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def write(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    path = HERE / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    print(f"{path.name}: {path.stat().st_size} bytes")


def lengths(row: Row) -> tuple[int, int]:
    return int(row["input_tokens"]), int(row["output_tokens"])


def drawn(rows: Sequence[Row], num_rows: int, max_total: int) -> list[tuple[int, int]]:
    fitting = [pair for pair in map(lengths, rows) if min(pair) >= 1 and sum(pair) <= max_total]
    return random.Random(0).sample(fitting, min(num_rows, len(fitting)))


def write_lengths(folder: Path) -> None:
    columns = "input_tokens", "output_tokens"
    write("sharegpt_first", columns, drawn(read(folder, "lengths_sharegpt_nanoflow"), 6000, 8192))
    write("arxiv_summaries", columns, drawn(read(folder, "lengths_arxiv_summ_vidur"), 2000, 8192))
    write("humaneval", columns, map(lengths, read(folder, "humaneval")))
    papers = [row for row in read(folder, "leval") if row["task"] == "paper_assistant"]
    write("leval_papers", columns, map(lengths, papers))


def write_conversations(folder: Path) -> None:
    sessions: dict[str, list[Row]] = {}
    for row in read(folder, "sharegpt8k_multiturn_etalon"):
        sessions.setdefault(row["session_id"], []).append(row)
    kept = random.Random(0).sample(sorted(sessions.values(), key=lambda turns: int(turns[0]["session_id"])), 1500)
    rows = [(i, row["turn"], *lengths(row)) for i, turns in enumerate(kept) for row in turns]
    write("sharegpt_turns", ("session_id", "turn", "input_tokens", "output_tokens"), rows)


def write_documents(folder: Path) -> None:
    """Per question its document, and how many leading tokens all questions about that document share."""
    questions: dict[str, list[Row]] = {}
    for row in read(folder, "loogle_testdata"):
        questions.setdefault(row["session_id"], []).append(row)
    rows = []
    for document, of_document in questions.items():
        paths = [row["prefix_hashes"].split() for row in of_document]
        shared = 0
        for blocks in zip(*paths, strict=False):
            if len(set(blocks)) > 1:
                break
            shared += HASH_BLOCK
        rows += [(document, min(shared, lengths(row)[0]), *lengths(row)) for row in of_document]
    write("loogle_questions", ("document", "shared_tokens", "input_tokens", "output_tokens"), rows)


def write_times(folder: Path) -> None:
    azure = [row["arrival_s"] for row in read(folder, "azure23_conv")[:12_000]]
    write("azure_arrivals", ("arrival_s",), ([f"{float(arrival):.3f}"] for arrival in azure))
    last: dict[str, float] = {}
    pauses = []
    for row in read(folder, "mooncake_conversation"):
        session, arrival = row["session_id"], float(row["arrival_s"])
        if session in last and 0 < arrival - last[session] <= MAX_GAP_S:
            pauses.append(arrival - last[session])
        last[session] = arrival
    pauses.sort()
    write("turn_gaps", ("gap_s",), ([f"{pauses[i * len(pauses) // 500]:g}"] for i in range(500)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write_lengths(folder)
    write_conversations(folder)
    write_documents(folder)
    write_times(folder)


if __name__ == "__main__":
    main()
