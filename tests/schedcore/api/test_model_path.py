"""Names of models to directories."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from schedcore.api.model_path import ModelNotFoundError, resolve_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_directory_is_itself(folder: Path) -> None:
    assert resolve_model(str(folder)) == folder.resolve()


def test_a_relative_directory_becomes_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert resolve_model(folder.name) == folder.resolve()


def test_demo_is_the_model_that_the_engine_brings() -> None:
    folder = resolve_model("demo")
    assert folder.name == "demo_model"
    assert (folder / "model.safetensors").is_file()


def test_a_directory_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_a_name_that_is_nothing_says_what_it_could_have_been() -> None:
    with pytest.raises(ModelNotFoundError, match="neither a directory, nor a GGUF file, nor a hub id"):
        resolve_model("no-such-model")


def test_a_hub_id_is_fetched_without_other_formats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(name: str, **options: object) -> str:
        calls.append((name, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("some/model-1.5B") == folder
    ((name, options),) = calls
    assert name == "some/model-1.5B"
    assert "*.safetensors" in options["allow_patterns"]  # type: ignore[operator]
    assert not any(pattern.endswith(".bin") for pattern in options["allow_patterns"])  # type: ignore[attr-defined]


def test_without_a_network_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, **_: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError, match=r"'some/model'.*no route to host.*give its directory"):
        resolve_model("some/model")
