"""Ray is imported by nobody who did not ask for it, and who asks without having it is told what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.served import ROOT

MODULES = ("gateway.server", "gateway.cli.main", "gateway.cli.serve", "gateway.cli.node", "gateway.cli.fleet",
           "gateway.cluster.kept_manager")  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_importing_the_gateway_imports_no_ray(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(name.split('.')[0] == 'ray' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_who_asks_for_ray_without_having_it_is_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('gateways = ["127.0.0.1:7000"]\n')
    code = "import sys; sys.modules['ray'] = None; from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["up", str(tmp_path / "fleet.toml")], ["status"], ["scale", "2"], ["down"]):
        command = [sys.executable, "-c", code, "fleet", *arguments, "--ray", "auto"]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert said.returncode == 1
        assert said.stderr == "hocket fleet: Ray is not installed: pip install 'hocket-server[ray]'\n"


def test_variables_for_ray_are_printed_for_a_shell() -> None:
    command = [sys.executable, "-m", "gateway.cli.main", "fleet", "env", "--storage", "/var/lib/ray gcs"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shell = subprocess.run(
        ["sh", "-c", f'{said}\necho "$RAY_AUTH_MODE $RAY_gcs_storage_path"'], capture_output=True, text=True, check=True
    )
    assert shell.stdout == "token /var/lib/ray gcs\n"
