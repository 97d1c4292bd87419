"""Whether a model that is no folder is loaded from the Hugging Face hub, its cache, or not at all.

The libraries of Hugging Face repeat every request to a hub that they cannot reach, also for models
that are in the cache. So one request shows whether the hub can be reached; if not, only the cache
is used.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, try_to_load_from_cache

from germline.types import GermlineError

HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""OWNER/NAME; the hub knows the oldest models, such as gpt2, without an owner."""

REACH_S = 10.0
"""How long to wait for the hub, in seconds."""


@contextmanager
def hub_access(source: str, setting: str) -> Iterator[None]:
    """Let the libraries load a model from where it is.

    Args:
        source: a folder, or the name of a model on the hub.
        setting: that names the model, for errors.

    Raises:
        GermlineError: the source is neither, or the hub cannot be reached and the cache lacks it.
    """
    if Path(source).expanduser().exists():
        yield
        return
    is_cached = _is_cached(source)
    if not is_cached and not HUB_NAME.fullmatch(source):
        moved = ""
        if setting == "model" and Path(source).is_absolute():  # as run directories hold it
            moved = "; `germline resume RUN model=FOLDER` tells a run where its model was moved"
        raise GermlineError(
            f"{setting}: {source!r} is no folder in {Path.cwd()}, and no name of a model on the "
            "Hugging Face hub, which is OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct: give one "
            f"of them{moved}"
        )
    unreachable = _unreachable()
    if unreachable is None:
        yield
        return
    if not is_cached:
        raise GermlineError(
            f"{setting}: {source!r} is no folder in {Path.cwd()}, the cache of Hugging Face does "
            f"not have it, and {constants.ENDPOINT} cannot be reached ({unreachable}): check the "
            "name and the network, or give a folder"
        )
    with without_network():
        yield


@contextmanager
def without_network() -> Iterator[None]:
    """Let the libraries of Hugging Face read their caches only.

    They read HF_HUB_OFFLINE when they are imported, so modules that are imported already are told
    as well.
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


def _is_cached(source: str) -> bool:
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except ValueError:  # no name of a repository
        return False


def _unreachable() -> str | None:
    """Return why the hub cannot be reached; None where it can."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)
    except Exception as error:  # noqa: BLE001 - its class belongs to the HTTP library of the version
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None
