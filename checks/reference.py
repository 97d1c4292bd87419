"""The pages of the site about commands and settings, made from the program itself.

`checks/docs_site.py` adds them to the site (`make docs`); they are not committed. Facts belong in
the help of a command or the description of a setting, not here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer.main

from germline.cli.application import app
from germline.config.reference import (
    OPEN,
    REQUIRED,
    ConfigSection,
    Setting,
    config_sections,
    settings_of,
)
from germline.studies.sweep import SweepOptions

DOCS = Path(__file__).resolve().parents[1] / "docs"

CLI_OPENING = """
# Commands

Every command has examples under `--help`.

| exit status | meaning |
|---|---|
| 0 | success |
| 1 | the command found a problem: a check failed, an estimate does not fit |
| 2 | an error that you can fix, explained in one paragraph |
| 130 | stopped by Ctrl-C or SIGTERM; the output says how to resume |

A traceback is a bug of germline; please report it with the output of `germline doctor --json`.

`germline --install-completion`, typed once in bash, zsh or fish, lets the Tab key complete
commands and options. `germline --show-completion` prints the script instead.
"""

CONFIG_OPENING = """
# Settings

A config is YAML, or a mapping in Python. On the command line, `strategy.sigma=0.002` replaces one
setting. Where a section has several kinds, the name of a kind is short for the section: `space:
full` means `space: {kind: full}`. An unknown, misspelled or invalid setting stops the run with an
error that names the setting, its value and a fix. The default *open* means that the task, the
model or the machine decides, as the meaning says. `germline list settings` prints these tables.
"""


def pages() -> dict[str, str]:
    """Return the text of every generated page by file name."""
    return {
        "cli.md": _page(CLI_OPENING, _commands()),
        "config.md": _page(CONFIG_OPENING, _sections()),
    }


def _page(opening: str, blocks: Iterator[str]) -> str:
    return "\n\n".join([opening.strip(), *blocks]) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])


# --- the command line


def _commands() -> Iterator[str]:
    root = typer.main.get_command(app)
    verbs = list(_verbs(root, "germline"))
    rows = [(f"[`{name}`](#{_anchor(name)})", _first_line(verb)) for name, verb in verbs]
    yield _table(("command", "what it does"), rows)
    yield _table(("option of every command", ""), [("`--help`", "Show the help of a command.")])
    yield _table(("option of `germline`", ""), list(_parameters(root)))
    for name, verb in verbs:
        yield f"## {name}"
        yield f"```\n{' '.join([name, *_usage(verb)])}\n```"
        yield from _paragraphs(verb.help or "")
        if rows := list(_parameters(verb)):
            yield _table(("argument or option", "meaning"), rows)
        if verb.epilog:
            title, _, lines = verb.epilog.strip("\b\n").partition("\n")
            yield title
            yield "```\n" + "\n".join(line.strip() for line in lines.splitlines()) + "\n```"


def _verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _verbs(inner, f"{name} {word}")
        else:
            yield f"{name} {word}", inner


def _usage(verb: Any) -> Iterator[str]:
    for parameter in verb.params:
        if parameter.param_type_name == "argument":
            shown = _value(verb, parameter) + ("..." if parameter.nargs == -1 else "")
            yield shown if parameter.required else f"[{shown}]"
    yield "[OPTIONS]"


def _parameters(verb: Any) -> Iterator[tuple[str, str]]:
    for parameter in verb.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            name = f"`{_value(verb, parameter)}`"
        else:
            value = "" if parameter.is_flag else f" {_value(verb, parameter)}"
            names = (*parameter.opts, *parameter.secondary_opts)
            name = ", ".join(f"`{option}{value}`" for option in names)
        yield name, " ".join([*(parameter.help or "").split(), *_notes(parameter)])


def _value(verb: Any, parameter: Any) -> str:
    """Name what an argument or option takes: the words to choose from, N, or its metavar."""
    if parameter.metavar:
        return str(parameter.metavar)
    hint = get_type_hints(verb.callback).get(str(parameter.name))
    inner = (hint, *get_args(hint))
    for part in inner:
        if get_origin(part) is Literal:
            return "|".join(str(word) for word in get_args(part))
    if int in inner or float in inner:
        return "N"
    return str(parameter.name).upper()


def _notes(parameter: Any) -> Iterator[str]:
    if parameter.param_type_name == "option" and parameter.required:
        yield "Required."
    default = parameter.default
    if isinstance(default, (int, float, str)) and not isinstance(default, bool):
        yield f"Default: `{default}`."


def _first_line(verb: Any) -> str:
    return next(_paragraphs(verb.help or ""))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n\n"):
        yield " ".join(paragraph.split())


def _anchor(heading: str) -> str:
    kept = (letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return "".join(kept).replace(" ", "-")


# --- the settings


def _sections() -> Iterator[str]:
    root, *rest = config_sections()
    yield f"## The run\n\n{root.meaning}"
    yield _settings(root.settings)
    by_place: dict[tuple[str, ...], list[ConfigSection]] = {}
    for part in rest:
        by_place.setdefault(part.places, []).append(part)
    for places, here in by_place.items():
        yield "## " + ", ".join(f"`{place}`" for place in places)
        if len(here) == 1:
            yield from _section(here[0], here[0].settings)
            continue
        shared = [own for own in here[0].settings if all(own in part.settings for part in here)]
        if len(shared) * (len(here) - 1) < 2:
            shared = []  # one repeated line reads better than a table
        if shared:
            yield "Of every kind:"
            yield _settings(shared)
        for part in here:
            yield from _section(part, [own for own in part.settings if own not in shared])
    yield "## `sweep`\n\nOf `germline sweep`; no config holds it."
    yield _settings([*settings_of(SweepOptions)])


def _section(part: ConfigSection, own: Sequence[Setting]) -> Iterator[str]:
    yield f"### `{part.kind}`\n\n{part.meaning}" if part.kind else part.meaning
    if own:
        yield _settings(own)


def _settings(settings: Sequence[Setting]) -> str:
    rows = []
    for setting in settings:
        mark = "*" if setting.default in (OPEN, REQUIRED) else "`"
        default = f"{mark}{setting.default}{mark}"
        meaning = setting.meaning or "See below."
        rows.append((f"`{setting.name}`", setting.accepts, default, meaning))
    return _table(("setting", "accepts", "default", "meaning"), rows)
