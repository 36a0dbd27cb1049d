"""`hocket serve --config FILE`: options, or one line that names what is wrong."""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from functools import cache
from pathlib import Path

from gateway.cli.options import OptionsError, add_options, engine_config, gateway_config, read_file

_FOLDER = Path(tempfile.mkdtemp(prefix="hocket-fuzz-"))
_FILE_OPTIONS = ("webhook_secret_file", "latency_profile")  # name other files, on this machine


def check(data: bytes) -> None:
    path = _FOLDER / "hocket.toml"
    path.write_bytes(data)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = read_file(path, _parser())
            for name in _FILE_OPTIONS:
                options.pop(name, None)
            gateway_config(options, "demo", ())
            engine_config(options, _FOLDER, "demo")
    except OptionsError as error:
        assert str(error)
    except SystemExit as end:  # argparse's way to say that a value is wrong
        assert end.code == 2
        assert "error:" in said.getvalue()


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hocket serve")
    add_options(parser)
    return parser
