"""The model card (README.md) of exported weights, in the form that the Hugging Face hub reads.

The card is written as well as the run allows: what the run did not record is left out, and a card
that cannot be written is a warning, because the weights are there. Absolute paths are shortened to
their last part, as a card is often published. The license is left to the user.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml

from germline.config import Config
from germline.config.config_files import TASK_SUFFIXES
from germline.config.file_paths import is_gguf
from germline.evaluation import confidence_interval
from germline.record import RunDirectory
from germline.record.atomic_files import write_atomically
from germline.record.metrics_rows import batch_examples
from germline.report.diff import changed_settings
from germline.report.random_start import random_start
from germline.report.text_format import number
from germline.run.prompt_form import CARD, SENT_RAW, sends_chats
from germline.types import GermlineError, HeldOutScore

log = logging.getLogger(__name__)

CONFIG = re.compile(r"^## Config\n.*?^(`{3,})yaml\n(.*?\n)\1$", re.DOTALL | re.MULTILINE)
"""The config in a card; a longer fence holds a shorter one."""

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

LOAD_MERGED = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")
"""
LOAD_ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(base, "{folder}")
tokenizer = AutoTokenizer.from_pretrained({base})
"""


def write_model_card(
    run: RunDirectory, folder: Path, form: Literal["adapter", "merged"], last: int
) -> None:
    """Write the card of exported weights beside them; warn if that fails.

    Args:
        run: that trained the weights.
        folder: that holds them.
        form: of the weights.
        last: the last update that they include; -1 is none.
    """
    try:
        text = model_card(run, folder.name, form, last)
        write_atomically(folder / CARD, text.encode("utf-8", "backslashreplace"))
    except (GermlineError, OSError) as error:
        log.warning("%s: the model card was not written: %s", folder, error)


def model_card(run: RunDirectory, name: str, form: Literal["adapter", "merged"], last: int) -> str:
    """Return the text of a card."""
    entries = run.journal.read()
    digest = entries[last].digest if last >= 0 else run.base_digest
    config = run.config
    base = _shortened(config.model)
    header = {
        **({"base_model": config.model} if HUB_NAME.fullmatch(config.model) else {}),
        "library_name": "peft" if form == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["germline", "evolution-strategies"],
    }
    facts = {
        "base model": base,
        "method": _method(run),
        **_adapted(run, last),
        "searched": f"space `{config.space.kind}`"
        + (", exported as a PEFT adapter" if form == "adapter" else ""),
        "task": f"`{config.task.title}`",
        "generations": f"{last + 1} of {config.generations}, run seed {config.seed}",
        "digest": f"`{digest}` (SHA-256 of fp32 master weights, moments and factors of sigma)",
        "germline": str(run.environment["versions"].get("germline")),
    }
    # The built-in model is a folder of the package; transformers knows it by no name.
    base_arguments = "NANO_DIR" if base == "nano" else f'"{base}"'
    if is_gguf(base):
        base_arguments = f'".", gguf_file="{base}"'
    load = (LOAD_ADAPTER if form == "adapter" else LOAD_MERGED).format(
        folder=name, base=base_arguments
    )
    if form == "adapter" and base == "nano":
        load = f"from germline.nano import NANO_DIR\n{load}"
    settings = yaml.safe_dump(_shortened(changed_settings(config)), sort_keys=False)
    parts = (
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n",
        f"# {base}, trained on {config.task.title}\n",
        "germline trained these weights with evolution strategies: forward passes and a reward, "
        "without backpropagation.\n",
        "\n".join(["| | |", "|---|---|", *(f"| {a} | {_cell(b)} |" for a, b in facts.items())]),
        "\n## Scores\n",
        "\n".join(_scores(run, last)),
        f"\n## Loading\n\n```python\n{load}```\n",
        f"{_prompts(config)}\n",
        "## Config\n\nThe settings that differ from the defaults; `run.json` in the run directory "
        f"has all of them.\n\n{_fenced(settings, 'yaml')}\n",
        "## License\n\nNo license is set here. The license of the base model and of the training "
        "data apply; add `license:` to the first lines of this file, and name it here.\n",
    )
    return "\n".join(parts)


def task_of_card(folder: Path) -> str | None:
    """Return the short name or the file of the task that trained exported weights.

    None where the folder has no card of germline, or the task needs more than a name.
    """
    try:
        found = CONFIG.search((folder / CARD).read_text(encoding="utf-8"))
        task = yaml.safe_load(found[2])["task"] if found else {}
        task = {"kind": task} if isinstance(task, str) else task
        kind, path = task.get("kind"), task.get("path")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return None
    if path is None:
        return None if kind == "rows" else kind
    return path if kind in (TASK_SUFFIXES.get(Path(path).suffix), "environment") else None


def _prompts(config: Config) -> str:
    """Say how the run sent its prompts, with the line of Python that does the same."""
    if not sends_chats(config):
        return f'{SENT_RAW}: `tokenizer(prompt, return_tensors="pt")`.'
    system = " after the system message of the config below" if config.task.system_prompt else ""
    return (
        f"The run sent its prompts as messages of the user{system}: "
        '`tokenizer.apply_chat_template([{"role": "user", "content": prompt}], '
        'add_generation_prompt=True, return_dict=True, return_tensors="pt")`.'
    )


def _method(run: RunDirectory) -> str:
    config = run.config
    members = config.strategy.population
    examples = batch_examples(run.generations(), config)
    text = f"strategy `{config.strategy.kind}`, {members} members, {examples} examples"
    if not config.method.members_generate:
        text += f", {config.method.generated_rows(members or 1)} samples of each"
    if config.method.kind != "es":
        text = f"`{config.method.kind}`, {text}"
    if run.ancestors:
        text += f"; began with the weights of {len(run.ancestors)} earlier runs"
    return text


def _adapted(run: RunDirectory, last: int) -> dict[str, str]:
    """Return the values of the last update that the config leaves to the run."""
    rows = [row for row in run.generations() if row["generation"] == last]
    found: dict[str, str] = {}
    strategy = run.config.strategy
    for name, words in ("sigma", "calibrated"), ("learning_rate", "measured"):
        if rows and getattr(getattr(strategy, name, None), "kind", None) == "auto":
            value = f"{number(rows[0][name])} in the last generation"
            if not rows[0][name]:
                value += ", in which no member differed"
            found[name.replace("_", " ")] = f"{value}, {words} (`strategy.{name}=auto`)"
    if "sigma" in found:
        found["sigma"] += f", in the unit `{run.config.search.unit}`"
    return found


def _scores(run: RunDirectory, last: int) -> Iterator[str]:
    """Yield the lines that say what was measured of the base model and of these weights."""
    scores = {row.score.generation: row.score for row in run.held_out()}
    known = [(name, scores.get(at)) for name, at in (("start", 0), ("these weights", last + 1))]
    rows = [(name, score) for name, score in known if score is not None and score.n]
    if not rows:
        yield "These weights were not scored; `germline eval` does it."
        return
    yield "| weights | metric | mean | 95 % interval | examples |"
    yield "|---|---|---|---|---|"
    yield from (_score_row(name, score) for name, score in rows)
    yield ""
    yield "Measured on held-out examples of the task, with the decoding of the config."
    if any(name == "start" for name, _ in rows) and (sentence := random_start(run)):
        yield sentence
    if last + 1 not in scores:
        yield f"The weights after {last + 1} updates were not scored."
    if not run.config.method.trains_center:
        yield "The scores are those of a vote of members, of which these weights are the best one."


def _score_row(name: str, score: HeldOutScore) -> str:
    low, high = confidence_interval(score)
    interval = f"{low:.4g} to {high:.4g}"
    return f"| {name} | {_cell(score.metric)} | {score.mean:.4g} | {interval} | {score.n} |"


def _cell(text: str) -> str:
    """Make a text fit a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def _fenced(text: str, language: str) -> str:
    """Fence a block; prompts in it may contain fences of their own."""
    longest = max((len(one) for one in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}{fence}"


def _shortened(value: Any) -> Any:
    """Return a value in which absolute paths are shortened to their last part."""
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if isinstance(value, str) and "\n" not in value and Path(value).is_absolute():
        return Path(value).name
    return value
