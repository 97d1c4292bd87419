"""The registry: every kind of every section of a config, built in or from a plugin, by short name.

One decorator registers a kind: the config section it decorates, and the class that implements it,
which `create` imports on first use.

    @register("space", "germline.spaces.low_rank:LowRank")
    class LowRank(LinearSpace):
        kind: Literal["low_rank"] = "low_rank"

Importing `germline.config` registers everything that is built in. An installed package adds kinds
through entry points of the group `germline.plugins`, each of which names a module that registers
them when it is imported (docs/extending.md).
"""

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from germline.errors import GermlineError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoints

log = logging.getLogger(__name__)

PLUGINS = "germline.plugins"
"""The group of entry points through which packages add kinds."""

Decorated = TypeVar("Decorated")


@dataclass(frozen=True)
class Entry:
    """One registered kind."""

    registered: Any
    """The config section, or the function of a reward."""
    implementation: Any = None
    """`module:Class` of what a section configures, None where the section is all there is; or the
    `Reward` made of a function, itself or as `module:NAME`."""


_entries: dict[str, dict[str, Entry]] = {}


def register(
    group: str, implementation: object = None, name: str | None = None
) -> Callable[[Decorated], Decorated]:
    """Register the decorated config section as a kind.

    Args:
        group: the setting whose kind it is, such as `strategy`.
        implementation: `module:Class`, which `create` calls with the section (docs/extending.md).
        name: the short name; default: that of the section's setting `kind`.
    """

    def add(registered: Decorated) -> Decorated:
        kind = name or str(registered.model_fields["kind"].default)  # type: ignore[attr-defined]
        known = _entries.setdefault(group, {}).get(kind)
        if known is not None and _place(known.registered) != _place(registered):
            raise GermlineError(
                f"{group}.kind={kind} is registered twice, by {_place(known.registered)} and by "
                f"{_place(registered)}: rename the kind of the plugin"
            )
        _entries[group][kind] = Entry(registered, implementation)
        return registered

    return add


def entries(group: str) -> Mapping[str, Entry]:
    """Return the kinds of a group by name, those of plugins included; none of an unknown group."""
    load_plugins()
    return _entries.get(group, {})


def sections(group: str) -> dict[str, type[Any]]:
    """Return the config sections of a group by kind; none of a group without sections."""
    known = entries(group).items()
    fields = {kind: getattr(entry.registered, "model_fields", {}) for kind, entry in known}
    return {kind: entry.registered for kind, entry in known if "kind" in fields[kind]}


def implementation(group: str, kind: str) -> Any:
    """Return the class that implements a kind, or the reward; import it where it is named."""
    made_by = entries(group)[kind].implementation
    if not isinstance(made_by, str):
        return made_by
    module, _, attribute = made_by.partition(":")
    return getattr(import_module(module), attribute)


def create(
    group: str, config: Any, *arguments: Any, kind: str | None = None, **context: Any
) -> Any:
    """Construct what a config asks for, through `from_config` where the class has one.

    Args:
        group: the setting whose kind it is.
        config: its section, or the whole config (of engines).
        arguments: passed on, as docs/extending.md lists them by group.
        kind: default: that of the section.
        context: passed on, by name.
    """
    made_by = implementation(group, kind or config.kind)
    return getattr(made_by, "from_config", made_by)(config, *arguments, **context)


@cache
def load_plugins() -> Mapping[str, str]:
    """Import the plugins once; return why some could not be imported, by package."""
    failures = {}
    for point in _entry_points():
        try:
            point.load()
        except Exception as error:  # noqa: BLE001 - a plugin is somebody else's code
            package = point.dist.name if point.dist else point.value
            failures[package] = f"{type(error).__name__}: {error}"
            log.warning("the plugin %s cannot be imported (%s)", package, failures[package])
    return failures


def package_of(registered: Any) -> "Distribution | None":
    """Return the package that a section or reward comes from; None if it is no plugin's."""
    top = str(registered.__module__).partition(".")[0]
    points = () if top == "germline" else _entry_points()  # reading them takes 30 ms
    return next((one.dist for one in points if one.module.partition(".")[0] == top), None)


def _entry_points() -> "EntryPoints":
    from importlib.metadata import entry_points  # grader processes need none

    return entry_points(group=PLUGINS)


def unknown_kind(group: str, kind: str) -> str:
    """Say that a group has no such kind, which it has, and which plugins could not be imported."""
    known = entries(group)
    if kind in known:
        return f"{kind!r} is registered after a config was read: import its module before that"
    choice = ", ".join(map(repr, known))
    text = f"there is no kind {kind!r}{did_you_mean(kind, known)}; choose one of {choice}"
    broken = "; ".join(f"{package} ({why})" for package, why in load_plugins().items())
    return f"{text}; plugins that cannot be imported: {broken}" if broken else text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or an empty string when no known word is similar."""
    by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(by_lower_case), n=1, cutoff=0.6)
    return f" (did you mean {by_lower_case[near[0]]!r}?)" if near else ""


def _place(registered: Any) -> str:
    return f"{registered.__module__}.{registered.__qualname__}"
