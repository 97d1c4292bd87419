"""The commands that a report suggests: they repeat, continue and use a run."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from germline.record.seed_study import folder_to_resume
from germline.report.run_facts import RunFacts
from germline.report.text_format import escape_control_characters


@dataclass(frozen=True)
class SuggestedCommand:
    """A command line and its purpose."""

    purpose: str
    line: str


def suggested_commands(run: RunFacts) -> list[SuggestedCommand]:
    """Return the commands that repeat, continue and use a run."""
    # `.` and `..` would not mean the run in another working directory.
    folder = run.path if run.path.name not in ("", "..") else run.path.resolve()
    path = _quoted(folder)
    threads = run.run.environment["threads"]
    engine = run.config.engine.model_dump()
    # The run used the machine's number of threads; the same bits need the same number.
    same = f" engine.threads={threads}" if engine.get("threads", threads) is None else ""
    repeat = f"germline train {_quoted(folder / 'run.json')}{same} --out {path}-again"
    if run.ancestors:  # The config alone does not contain the starting weights of a fork.
        seed = run.config.seed
        repeat = f"germline resume {path} --from -1 --out {path}-again seed={seed}{same}"
    commands = [
        SuggestedCommand("Repeat the run: the same bits on the same kind of processor", repeat)
    ]
    if command := _resume_command(run, folder):
        commands.append(command)
    if run.done and run.config.method.replayable:
        middle = (run.done - 1) // 2
        replay = f"germline export {path} --generation {middle} --out generation-{middle}"
        commands.append(SuggestedCommand("Rebuild any generation and verify its digest", replay))
    library = "peft" if run.config.space.trains_an_adapter else "transformers"
    return [
        *commands,
        SuggestedCommand(
            f"Export the weights for plain {library}", f"germline export {path} --out my-model"
        ),
        SuggestedCommand("Score every held-out example", f"germline eval {path}"),
        SuggestedCommand(
            "Generate an answer to a prompt", f'germline generate {path} "your prompt"'
        ),
    ]


def _resume_command(run: RunFacts, folder: Path) -> SuggestedCommand | None:
    """Return the command that trains on a run; None if its schedule ends with its generations."""
    resume = f"germline resume {_quoted(folder_to_resume(folder))}"
    if not run.has_ended:
        return SuggestedCommand("Continue the stopped run", resume)
    if run.done < run.config.generations:
        patience = f"held_out.patience={2 * (run.config.held_out.patience or 1)}"
        return SuggestedCommand("Continue the run, which stopped early", f"{resume} {patience}")
    if run.config.strategy.whole_run:
        return None
    more = f"{resume} generations={2 * run.config.generations}"
    return SuggestedCommand("Train for more generations", more)


def _quoted(path: Path) -> str:
    return escape_control_characters(shlex.quote(str(path)))
