"""The plugins of a run: `run.json` names their packages, and opening a run checks them."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from germline import registry
from germline.config.base import KindSection, Section
from germline.config.run_config import Config
from germline.types import GermlineError

log = logging.getLogger(__name__)


class MissingPluginError(GermlineError):
    """A run uses a plugin that is not installed."""


def plugins_of(configs: Iterable[Config]) -> dict[str, dict[str, str]]:
    """Return setting -> package for every kind and reward in some configs that is not built in.

    A setting is spelled as an override, such as `strategy.kind=theirs`. If a kind belongs to no
    installed package, the module that registered it is named instead.
    """
    plugins = {}
    for config in configs:
        for setting, entry in _entries("", config):
            if not registry.is_builtin(entry):
                package = registry.package_of(entry)
                plugins[setting] = (
                    {"module": str(entry.registered.__module__)}
                    if package is None
                    else {"package": package.name, "version": package.version}
                )
    return plugins


def check_plugins(place: Path, recorded: Mapping[str, Mapping[str, str]]) -> None:
    """Check that the plugins of a run are installed, and warn about other versions.

    Args:
        place: the run directory.
        recorded: the result of `plugins_of` when the run began.

    Raises:
        MissingPluginError: a plugin is missing; the message says how to install it.
    """
    for setting, source in recorded.items():
        path, _, name = setting.partition("=")
        *outer, group = path.removesuffix(".kind").split(".")
        entry = registry.entries("scorer" if outer[-1:] == ["scorers"] else group).get(name)
        if "package" not in source:
            if entry is None:
                raise MissingPluginError(
                    f"{place}: {setting} was registered by the module {source['module']}, which "
                    f"belongs to no package: import {source['module']} before you open the run"
                )
            continue
        package, version = source["package"], source["version"]
        if entry is None:
            why = registry.load_plugins().get(package)
            state = f"cannot be imported here ({why})" if why else "is not installed here"
            raise MissingPluginError(
                f"{place}: {setting} comes from the package {package} {version}, which {state}: "
                f"pip install '{package}=={version}'"
            )
        installed = registry.package_of(entry)
        if installed is not None and installed.version != version:
            log.warning(
                "%s: %s was recorded with %s %s, and %s is installed: a replay that computes "
                "other weights stops at the first digest that differs",
                *(place, setting, package, version, installed.version),
            )


def _entries(path: str, section: Section) -> Iterator[tuple[str, registry.Entry]]:
    """Yield the registered kinds and rewards that a config names, at any depth."""
    for name in type(section).model_fields:
        value: Any = getattr(section, name)
        if isinstance(value, KindSection):
            entry = registry.entries(name).get(value.kind)
            if entry is not None:
                yield f"{path}{name}.kind={value.kind}", entry
        if isinstance(value, Section):
            yield from _entries(f"{path}{name}.", value)
        elif name == "scorers" and isinstance(value, Mapping):
            known = registry.entries("scorer")
            for key, scorer in value.items():
                yield f"{path}scorers.{key}.kind={scorer.kind}", known[scorer.kind]
        elif name == "reward" and isinstance(value, Mapping):
            known = registry.entries("reward")
            yield from ((f"{path}reward={reward}", known[reward]) for reward in value)
