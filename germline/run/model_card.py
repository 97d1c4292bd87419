"""The model card (README.md) of exported weights, in the form that the Hugging Face hub reads.

The card is written as well as the run allows: what the run did not record is left out, and a card
that cannot be written is a warning, because the weights are there. Absolute paths are shortened to
their last part, as a card is often published. The license is left to the user.

`germline.json` beside it says whether prompts go through the chat template, and at which date, for
`germline eval`, `generate` and `serve` of the folder.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import ModelCard, ModelCardData

from germline.config.config_files import as_yaml, is_gguf
from germline.evaluation import confidence_interval
from germline.record import RunDirectory
from germline.record.atomic_files import write_atomically
from germline.record.metrics_rows import batch_examples
from germline.report.diff import changed_settings
from germline.report.text_format import number
from germline.run.model_prompts import EXPORT_FACTS, sends_chats
from germline.types import GermlineError, HeldOutScore

log = logging.getLogger(__name__)

CARD = "README.md"
TEMPLATE = Path(__file__).parents[1] / "report" / "templates" / "model_card.md"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

Form = Literal["adapter", "merged"]
"""Form of exported weights: a PEFT adapter (if one was trained), or a Hugging Face folder."""


def write_model_card(run: RunDirectory, folder: Path, form: Form, last: int) -> None:
    """Write the card of exported weights beside them; warn if that fails."""
    try:
        facts = {
            "chat": sends_chats(run.config),
            "prompt_date": run.config.task.prompt_date,
        }
        write_atomically(folder / EXPORT_FACTS, json.dumps(facts).encode())
        text = model_card(run, folder.name, form, last)
        write_atomically(folder / CARD, text.encode("utf-8", "backslashreplace"))
    except (GermlineError, OSError) as error:
        log.warning("%s: the model card was not written: %s", folder, error)


def model_card(run: RunDirectory, name: str, form: Form, last: int) -> str:
    """Return the text of a card."""
    config, base = run.config, _shortened(run.config.model)
    by_gradients = config.method.backpropagates
    data = ModelCardData(
        base_model=config.model if HUB_NAME.fullmatch(config.model) else None,
        library_name="peft" if form == "adapter" else "transformers",
        pipeline_tag="text-generation",
        tags=["germline", *([] if by_gradients else ["evolution-strategies"])],
    )
    # The built-in model is a folder of the package; transformers knows it by no name.
    base_arguments = "NANO_DIR" if base == "nano" else f'"{base}"'
    if is_gguf(base):
        base_arguments = f'".", gguf_file="{base}"'
    settings = as_yaml(_shortened(changed_settings(config)))
    scores = {row.score.generation: row.score for row in run.held_out() if row.score.n}
    known = {"start": scores.get(0), "these weights": scores.get(last + 1)}
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        number=number,
        interval=_interval,
        base=base,
        by_gradients=by_gradients,
        task=config.task.title,
        facts=_facts(run, form, last),
        scores={name: score for name, score in known.items() if score},
        form=form,
        folder=name,
        base_arguments=base_arguments,
        chat=sends_chats(config),
        system=bool(config.task.system_prompt),
        settings=settings,
    )
    return f"{card.content}\n"


def _facts(run: RunDirectory, form: Form, last: int) -> dict[str, str]:
    config = run.config
    digest = run.journal.read()[last].digest if last >= 0 else run.base_digest
    members, examples = config.strategy.population, batch_examples(run.generations(), config)
    of_members = f", strategy `{config.strategy.kind}`, {members} members"
    method = f"`{config.method.kind}`{of_members if config.method.perturbs else ''}"
    if run.ancestors:
        method += f"; began with the weights of {len(run.ancestors)} earlier runs"
    exported = ", exported as a PEFT adapter" if form == "adapter" else ""
    return {
        "base model": _shortened(config.model),
        "method": f"{method}, {examples} examples",
        "searched": f"space `{config.space.kind}`{exported}",
        "task": f"`{config.task.title}`",
        "generations": f"{last + 1} of {config.generations}, run seed {config.seed}",
        "digest": f"`{digest}` (SHA-256 of fp32 master weights, moments and factors of sigma)",
        "germline": str(run.environment["versions"].get("germline")),
    }


def _interval(score: HeldOutScore) -> str:
    return " to ".join(map(number, confidence_interval(score)))


def _shortened(value: Any) -> Any:
    """Return a value in which absolute paths are shortened to their last part."""
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if isinstance(value, str) and "\n" not in value and Path(value).is_absolute():
        return Path(value).name
    return value
