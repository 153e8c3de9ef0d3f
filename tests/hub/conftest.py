"""A stand-in for the Hugging Face Hub."""

from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The module for the Hub, with a folder in the place of its server."""
    module = pytest.importorskip("equivariant_transformers.hub.huggingface")
    remote = tmp_path / "remote"

    def upload(*, repo_id, folder_path, **_):
        assert repo_id == "someone/model"
        Path(folder_path).rename(remote)
        return "a commit"

    def download(repo_id, filename, **_):
        assert repo_id == "someone/model"
        return str(remote / filename)

    api = SimpleNamespace(create_repo=lambda repo_id, **_: SimpleNamespace(repo_id=repo_id), upload_folder=upload)
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", lambda **_: api)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    monkeypatch.setattr(module, "hf_hub_download", download)
    return module
