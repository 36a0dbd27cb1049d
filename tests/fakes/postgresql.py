"""A PostgreSQL server for tests, from Debian's packages where they are installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text

_USER = "postgres"  # the server refuses to run as root
_START_SECONDS = 60.0  # generous: a deadline, not a measurement


def binaries() -> Path | None:
    """The folder with initdb and pg_ctl; None: not installed."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return max(folders, key=lambda path: int(path.parent.name), default=None)


@contextmanager
def running() -> Iterator[str]:
    """The URL of a server's first database. Its socket lies in a short path, as sockets need. REQUIRES: binaries()."""
    where = binaries()
    assert where is not None
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(prefix="hocket-pg-") as folder:
        if is_root:
            shutil.chown(folder, _USER)
        become = ["setpriv", "--pdeathsig=QUIT"]  # a test that is killed leaves no server
        become += [f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if is_root else []
        data = ["-D", f"{folder}/data"]
        initdb = [*become, str(where / "initdb"), *data, "-U", _USER, "--auth=trust", "--no-sync"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        settings = ("listen_addresses=", f"unix_socket_directories={folder}", "fsync=off")
        options = [word for setting in settings for word in ("-c", setting)]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen([*become, str(where / "postgres"), *data, *options], stderr=log, cwd=folder)
        try:
            _wait_until_ready(server, where, folder)
            yield f"postgresql+psycopg://{_USER}@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], where: Path, folder: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while subprocess.run([where / "pg_isready", "-q", "-h", folder], check=False).returncode:
        assert server.poll() is None, Path(folder, "log").read_text()
        assert time.monotonic() < deadline, Path(folder, "log").read_text()
        time.sleep(0.05)


def emptied(url: str) -> str:
    """The same URL; nothing is in that database any more."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return url
