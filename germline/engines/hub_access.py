"""Load models of the Hugging Face hub from its cache alone where the hub cannot be reached.

The libraries of Hugging Face repeat every request to a hub that they cannot reach, also for models
that are in the cache. So one request shows whether the hub can be reached.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session

from germline.types import GermlineError

HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""OWNER/NAME; the hub knows the oldest models, such as gpt2, without an owner."""

REACH_S = 10.0
"""How long to wait for the hub, in seconds."""


@contextmanager
def hub_access(source: str, setting: str) -> Iterator[None]:
    """Let the libraries load a model from a folder, the hub, or its cache."""
    is_folder = Path(source).expanduser().exists()
    if not is_folder and not HUB_NAME.fullmatch(source):
        raise GermlineError(
            f"{setting}: {source!r} is no folder in {Path.cwd()}, and no name of a model on the "
            "Hugging Face hub, which is OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct (a run "
            "whose model was moved: `germline resume RUN model=FOLDER`)"
        )
    with nullcontext() if is_folder or _is_hub_reached() else without_network():
        yield


@contextmanager
def without_network() -> Iterator[None]:
    """Let the libraries of Hugging Face read their caches only.

    They read HF_HUB_OFFLINE when they are imported, so imported modules are changed as well.
    """
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    names = ("huggingface_hub.constants", "datasets.config")
    loaded: list[Any] = [sys.modules[name] for name in names if name in sys.modules]
    values = [module.HF_HUB_OFFLINE for module in loaded]
    for module in loaded:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(loaded, values, strict=True):
            module.HF_HUB_OFFLINE = value
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _is_hub_reached() -> bool:
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)
    except Exception:  # noqa: BLE001 - its class belongs to the HTTP library of the version
        return False
    return True
