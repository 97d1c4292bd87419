"""What `run.json` says about the program that wrote it: the format version and the plugins."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from germline import registry
from germline.config.base import KindSection, Section
from germline.config.run_config import Config
from germline.types import GermlineError

log = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Format of the whole run directory; raised if another germline could misread a folder.

A setting that did not exist when a run began gets its default when the run is opened. So a new
setting must have no effect by default, and does not change the format version.
"""


class MissingPluginError(GermlineError):
    """A run uses a plugin that is not installed."""


def check_format_version(file: Path, facts: object) -> None:
    """Check that this germline reads the run directory of a `run.json`.

    Raises:
        GermlineError: another version wrote it; the message names the version that can read it.
    """
    known = facts if isinstance(facts, Mapping) else {}
    version, versions = known.get("format_version"), known.get("versions")
    if version != FORMAT_VERSION:
        writer = versions.get("germline") if isinstance(versions, Mapping) else None
        remedy = f"open the run with germline {writer}, which wrote it"
        raise GermlineError(
            f"{file}: format_version is {version!r}, and this germline reads {FORMAT_VERSION}: "
            f"{remedy if writer else 'restore the file from a copy'}"
        )


def plugins_of(configs: Iterable[Config]) -> dict[str, dict[str, str]]:
    """Return setting -> package for every kind and reward in some configs that is not built in.

    A setting is spelled as an override, such as `strategy.kind=theirs`. If a kind belongs to no
    installed package, the module that registered it is named instead.
    """
    plugins = {}
    for setting, entry in (named for config in configs for named in _entries("", config)):
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
        package, version = source.get("package"), source.get("version")
        if entry is None and package is None:
            raise MissingPluginError(
                f"{place}: {setting} was registered by the module {source['module']}, which "
                f"belongs to no package: import {source['module']} before you open the run"
            )
        if entry is None:
            why = registry.load_plugins().get(str(package))
            state = f"cannot be imported here ({why})" if why else "is not installed here"
            raise MissingPluginError(
                f"{place}: {setting} comes from the package {package} {version}, which {state}: "
                f"pip install '{package}=={version}'"
            )
        installed = registry.package_of(entry)
        if installed and version not in (None, installed.version):
            log.warning(
                "%s: %s was recorded with %s %s, and %s is installed: a replay that computes "
                "other weights stops at the first digest that differs",
                *(place, setting, package, version, installed.version),
            )


def _entries(path: str, section: Section) -> Iterator[tuple[str, registry.Entry]]:
    """Yield the registered kinds and rewards that a config names, at any depth."""
    for name in type(section).model_fields:
        value: Any = getattr(section, name)
        if isinstance(value, KindSection) and (entry := registry.entries(name).get(value.kind)):
            yield f"{path}{name}.kind={value.kind}", entry
        if isinstance(value, Section):
            yield from _entries(f"{path}{name}.", value)
        elif name == "scorers" and isinstance(value, Mapping):
            for key, scorer in value.items():
                kind = registry.entries("scorer")[scorer.kind]
                yield f"{path}scorers.{key}.kind={scorer.kind}", kind
        elif name == "reward" and isinstance(value, Mapping):
            known = registry.entries("reward")
            yield from ((f"{path}reward={reward}", known[reward]) for reward in value)
