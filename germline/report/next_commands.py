"""The commands that use a trained run: export its weights, train on, write its page."""

import shlex
from pathlib import Path

from germline.record import RunDirectory
from germline.record.best_generation import best_score, rank
from germline.record.seed_study import folder_to_resume


def next_commands(run: RunDirectory) -> list[str]:
    """Return the commands that apply to a run in its present state."""
    # `.` and `..` would not mean the run in another working directory.
    folder = run.path if run.path.name not in ("", "..") else run.path.resolve()
    path = shlex.quote(str(folder))
    commands = [f"germline report {path} --open"]
    if resume := resume_command(run, folder):
        commands.insert(0, resume)
    if not run.config.engine.has_own_model and run.journal.last_generation() >= 0:
        best = " --generation best" if _is_best_earlier(run) else ""
        commands.insert(0, f"germline export {path}{best} --out my-model")
    return commands


def resume_command(run: RunDirectory, folder: Path | None = None) -> str:
    """Return the command that trains on; empty where a schedule ends with the generations."""
    path = shlex.quote(str(folder_to_resume(folder or run.path)))
    if run.stopped_early:
        return f"germline resume {path} held_out.patience={2 * (run.config.held_out.patience or 1)}"
    if not run.has_ended:
        return f"germline resume {path}"
    if run.config.strategy.whole_run:
        return ""
    return f"germline resume {path} generations={2 * run.config.generations}"


def _is_best_earlier(run: RunDirectory) -> bool:
    """Whether an earlier generation that was trained scored better than the last one."""
    scores = [row.score for row in run.held_out()]
    best = best_score(scores)
    if best is None or not best.generation or not run.config.method.replayable:
        return False
    return rank(best) > rank(scores[-1])
