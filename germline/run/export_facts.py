"""`germline.json` and the model card (README.md) beside exported weights.

`chat` and `prompt_date` are for `germline eval`, `generate` and `serve` of the folder; the rest is
for readers and the Hugging Face hub. Absolute paths are shortened to their last part, as such a
folder is often published. The license is left to the user.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from germline.record import RunDirectory
from germline.record.atomic_files import write_atomically, write_json
from germline.report.diff import changed_settings
from germline.run.model_prompts import EXPORT_FACTS, sends_chats
from germline.types import GermlineError

log = logging.getLogger(__name__)

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Models of the hub, which a card may name as its base; others are folders."""


def write_export_facts(run: RunDirectory, folder: Path, last: int, library: str) -> None:
    """Write both files for the weights after a generation; warn if that fails.

    `library` loads the weights: `transformers` or `peft`.
    """
    config = run.config
    scores = {row.score.generation: row.score for row in run.held_out() if row.score.n}
    facts = {
        "chat": sends_chats(config),
        "prompt_date": config.task.prompt_date,
        "model": config.model,
        "digest": run.journal.read()[last].digest if last >= 0 else run.base_digest,
        "generation": last,
        "held_out": {
            name: {"metric": score.metric, "mean": score.mean, "examples": score.n}
            for name, updates in (("start", 0), ("these weights", last + 1))
            if (score := scores.get(updates))
        },
        "germline": run.environment["versions"].get("germline"),
        "config": changed_settings(config),
    }
    facts = _shortened(json.loads(json.dumps(facts, default=str)))
    data = ModelCardData(
        base_model=config.model if HUB_NAME.fullmatch(config.model) else None,
        library_name=library,
        pipeline_tag="text-generation",
        tags=["germline"],
    )
    card = f"""---
{data.to_yaml()}
---

# {folder.name}

`{facts["model"]}`, trained by germline with `method={config.method.kind}` on `{config.task.title}`:
generation {last}, digest `{facts["digest"]}`. Held-out scores and all settings that are not the
defaults are in `{EXPORT_FACTS}`.
"""
    try:
        write_json(folder / EXPORT_FACTS, facts)
        write_atomically(folder / "README.md", card.encode("utf-8", "backslashreplace"))
    except (GermlineError, OSError) as error:
        log.warning("%s: the model card was not written: %s", folder, error)


def _shortened(value: Any) -> Any:
    """Return a value in which absolute paths are shortened to their last part."""
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if isinstance(value, str) and "\n" not in value and Path(value).is_absolute():
        return Path(value).name
    return value
