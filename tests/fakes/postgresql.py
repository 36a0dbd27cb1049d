"""A PostgreSQL server for tests, from Debian's packages where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text

_USER = "postgres"  # the server refuses to run as root


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
        become = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if is_root else []

        def run(program: str, *arguments: str) -> None:
            command = [*become, str(where / program), "-D", f"{folder}/data", *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

        run("initdb", "-U", _USER, "--auth=trust", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-l", f"{folder}/log", "-w", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://{_USER}@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-m", "immediate", "-w", "stop")


def emptied(url: str) -> str:
    """The same URL; nothing is in that database any more."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return url
