"""`germline.json` beside exported weights: what they are, and how prompts were sent to them.

`chat` and `prompt_date` are for `germline eval`, `generate` and `serve` of the folder; the rest is
for readers. Absolute paths are shortened to their last part, as such a folder is often published.
"""

import json
import logging
from pathlib import Path
from typing import Any

from germline.record import RunDirectory
from germline.record.atomic_files import write_json
from germline.report.diff import changed_settings
from germline.run.model_prompts import EXPORT_FACTS, sends_chats
from germline.types import GermlineError

log = logging.getLogger(__name__)


def write_export_facts(run: RunDirectory, folder: Path, last: int) -> None:
    """Write the facts about exported weights beside them; warn if that fails."""
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
    try:
        write_json(folder / EXPORT_FACTS, _shortened(json.loads(json.dumps(facts, default=str))))
    except GermlineError as error:
        log.warning("%s: %s was not written: %s", folder, EXPORT_FACTS, error)


def _shortened(value: Any) -> Any:
    """Return a value in which absolute paths are shortened to their last part."""
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if isinstance(value, str) and "\n" not in value and Path(value).is_absolute():
        return Path(value).name
    return value
