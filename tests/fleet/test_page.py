"""The nodes of a real fleet, on the page, in a browser; where there is Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.real_fleet import fleet

BROWSER = shutil.which("chromium") or shutil.which("chromium-headless-shell")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=4000")
SECONDS = 60.0


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_page_shows_each_node_its_state_and_its_last_death(tmp_path: Path) -> None:
    with fleet(tmp_path, None) as running:
        running.add("first")
        running.add("second")
        for name in ("first", "second"):
            running.wait_for(name, "up")
        assert "(2 of 2 up)" in rendered(running.server.url, tmp_path)
        running.nodes["second"].end()
        running.wait_for("second", "gone", SECONDS)
        page = rendered(running.server.url, tmp_path)
    rows = dict(re.findall(r'<tr><th scope="row"[^>]*>(\w+)</th>(.*?)</tr>', page))
    assert "(1 of 2 up)" in page
    assert set(rows) == {"first", "second"}
    assert '<td class="">up</td>' in rows["first"]
    assert "none yet" in rows["first"]
    assert '<td class="poor">gone</td>' in rows["second"]
    assert "none yet" not in rows["second"]


def rendered(url: str, folder: Path) -> str:
    assert BROWSER is not None
    command = [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'browser'}", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
