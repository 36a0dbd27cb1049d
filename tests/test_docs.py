"""The documents keep their shape: what they name exists, and a reader finds every entry of the log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ENTRIES = sorted((DOCS / "log").glob("*.md"))
OWN_PAGES = [str(page.relative_to(ROOT)) for page in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))]
PAGES = [*OWN_PAGES, "client/README.md"]
TOP_FOLDERS = ["bench", "client", "cpp", "docs", "gateway", "kernels", "schedcore", "tests", "tools", "worker"]
HEADS = ["Question", "Prediction", "Result", "Decision"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.stem)
def test_an_entry_of_the_log_asks_answers_and_decides(entry: Path) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", entry.name)
    text = entry.read_text()
    heads = re.findall(r"(?m)^## (.*)$", text)
    assert heads in (HEADS, [head for head in HEADS if head != "Prediction"])
    assert all(part.strip() for part in re.split(r"(?m)^## .*$", text)), "a head without text"


def test_the_index_of_the_log_has_each_entry_once() -> None:
    indexed = re.findall(r"\]\(log/([^)]+)\)", (DOCS / "LOG.md").read_text())
    assert sorted(indexed) == [entry.name for entry in ENTRIES]


def test_pictures_are_compact() -> None:
    """A drawing as text makes `wc` and diffs lie; the largest picture has about 60 KB."""
    assert not [*DOCS.rglob("*.svg")]
    assert all(picture.stat().st_size < 100_000 for picture in DOCS.rglob("*.png"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_links_to_exists(page: str) -> None:
    text = re.sub(r"(?s)```.*?```|`[^`]*`", "", (ROOT / page).read_text())
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", OWN_PAGES, ids=str)
def test_prose_is_wrapped_and_tables_have_eight_columns(page: str) -> None:
    is_code = False
    for number, line in enumerate((ROOT / page).read_text().split("\n"), 1):
        is_code ^= line.lstrip().startswith("```")
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") - 1 <= 8, f"{page}:{number}: the rest belongs into a CSV file"
        else:
            assert is_code or len(line) <= 120, f"{page}:{number}: {len(line)} characters"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_every_path_that_is_named_exists(page: str) -> None:
    """A star, and NAME, stand for any name."""
    paths = re.findall(rf"(?<![\w/.-])(?:{'|'.join(TOP_FOLDERS)})/[\w.*/-]*\w(?:/(?!\w))?", (ROOT / page).read_text())
    assert paths
    assert [path for path in paths if not [*ROOT.glob(re.sub(r"YYYY-MM-DD-word|NAME", "*", path).rstrip("/"))]] == []


def test_the_changelog_is_by_version_and_kind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"(?m)^## (\d+\.\d+\.\d+)", text), "no version"
    kinds = ["Security", "Added", "Changed", "Removed", "Fixed"]
    for version in re.split(r"(?m)^## ", text)[1:]:
        found = re.findall(r"(?m)^### (.*)$", version)
        assert found == [kind for kind in kinds if kind in found]
        assert found


@pytest.mark.parametrize("package", ["cpp/core", "gateway", "worker", "schedcore", "kernels", "bench"])
def test_every_room_is_listed(package: str) -> None:
    text = (DOCS / "architecture.md").read_text()
    sources = [file for kind in ("py", "h", "cu") for file in (ROOT / package).glob(f"*/**/*.{kind}")]
    rooms = {file.relative_to(ROOT / package).parts[0] for file in sources}
    assert rooms
    assert [room for room in sorted(rooms) if f"`{package}/{room}/" not in text] == []
