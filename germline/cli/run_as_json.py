"""What `germline train --json` and `resume --json` print about a run, or about several seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from germline.cli.json_output import score_values
from germline.record import RunDirectory
from germline.record.best_generation import best_score
from germline.report.findings import findings

if TYPE_CHECKING:
    from germline.studies.run_seeds import SeedStudy, SeedSummary


def run_as_json(run: RunDirectory) -> dict[str, Any]:
    """Return the result of a training as values for JSON."""
    entries = run.journal.read()
    scores = [row.score for row in run.held_out()]
    best = best_score(scores)
    state = "finished" if run.has_ended else "stopped"
    return {
        "run": run.path,
        "state": "stopped early" if run.stopped_early else state,
        "generations": len(entries),
        "planned_generations": run.config.generations,
        "digest": entries[-1].digest if entries else run.base_digest,
        "held_out": {
            "start": score_values(scores[0]) if scores else None,
            "best": score_values(best) if best else None,
            "end": score_values(scores[-1]) if scores else None,
        },
        "findings": [finding.as_json() for finding in findings(run)],
        "report": run.report if run.report.exists() else None,
        "figure": run.figure if run.figure.exists() else None,
    }


def seeds_as_json(study: "SeedStudy", summary: "SeedSummary", report: Path) -> dict[str, Any]:
    """Return the result of several run seeds as values for JSON."""
    runs = [run_as_json(RunDirectory.open(study.path(seed))) for seed in study.seeds]
    return {"out": study.out, "report": report, "runs": runs, **summary.as_json()}
