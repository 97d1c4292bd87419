"""What every test relies on: no network, and GPU tests that say why they do not run."""

import os

import pytest

# Before anything imports huggingface_hub: a test that needs a download must fail, not wait.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where torch finds no accelerator."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # importing it costs seconds, and most selections need no answer

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(
                pytest.mark.skip(reason="needs a GPU: torch.cuda.is_available() is False")
            )
