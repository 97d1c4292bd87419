"""The command `germline report`: write an HTML page about runs."""

import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import shell_completion
from germline.cli.json_output import AsJson, difference_values, print_json, score_values
from germline.cli.word_wrap import print_stderr, print_stdout

if TYPE_CHECKING:
    from germline.report.run_facts import RunFacts
    from germline.report.seed_curves import SeedGroup

REPORT_EXAMPLES = (
    "germline report runs/sums --open",
    "germline report runs/sums runs/sums-wider --out compared.html",
)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="One or more run directories, or folders of several run seeds.",
            autocompletion=shell_completion.complete_runs,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write; default: report.html in the run directory or in the folder of "
            "run seeds, and for other runs a file in the working directory that is named after "
            "them.",
        ),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page about a run, or compare several.

    The page shows curves, answers before and after training, time, memory, failures, settings, and
    the commands that repeat the run. It is self-contained. A run that is training or was stopped
    can be reported too.
    """
    from germline.record.seed_study import runs_of
    from germline.report.html_page import page_path, read_runs, write_page
    from germline.report.seed_curves import seed_groups

    facts = read_runs([one for run in runs for one in runs_of(run)])
    path = page_path(facts, out)
    # The page in a run directory is that of the same run.
    replaces = path.exists() and (out is not None or len(facts) > 1)
    write_page(facts, path)
    groups = seed_groups(facts)
    if as_json:
        print_json(
            {
                "report": path,
                "replaced": replaces,
                "runs": _as_json(facts, groups),
                "seed_groups": _seed_groups_as_json(groups),
            }
        )
    else:
        if len(facts) > 1:
            _print_comparison(facts, groups)
        for one in facts:
            if one.damage:
                print_stderr(f"the journal is damaged: {one.damage}", "red")
            for line in _advice(one):
                print_stdout(line if len(facts) == 1 else f"{one.path}: {line}")
        earlier = ", in place of the page that was there" if replaces else ""
        print_stdout(f"written to {path}{earlier}")
    if browse and not webbrowser.open(path.resolve().as_uri()):
        print_stderr("no browser could be started: open the file in a browser")


def _print_comparison(runs: "Sequence[RunFacts]", groups: "Sequence[SeedGroup]") -> None:
    """Print the held-out scores of several runs, and their differences to the first run."""
    from germline.cli import tables, text_format
    from germline.report.random_start import random_start
    from germline.report.run_comparison import compared_runs, compared_with
    from germline.report.seed_curves import split_seeds

    tables.print_table(
        ("run", "metric", "before", "after", "n", f"difference to {compared_with(groups)}"),
        [
            (
                str(run.path),
                run.metric,
                text_format.score(run.scores[0]) if run.scores else "",
                text_format.score(run.scores[-1]) if run.scores[1:] else "",
                str(run.scores[-1].n) if run.scores else "",
                text_format.difference(found.difference) if found.difference else found.why_none,
            )
            for run, found in zip(runs, compared_runs(runs, groups), strict=True)
        ],
    )
    print_stdout(
        "differences of runs: paired over the same held-out examples, with 95 % intervals (of "
        "examples, not of run seeds)"
    )
    for sentence in dict.fromkeys(random_start(run.run) for run in runs):
        if sentence:
            print_stdout(sentence)
    for sentence in split_seeds(runs):
        print_stdout(sentence)
    _print_seed_groups(groups)


def _print_seed_groups(groups: "Sequence[SeedGroup]") -> None:
    """Print the scores of each config over its run seeds, and which config is better."""
    from germline.cli import tables, text_format
    from germline.report.run_comparison import seed_verdict

    if not groups:
        return
    typer.echo("")
    tables.print_table(
        ("config", "metric", "seeds", "before", "after"),
        [
            (
                text_format.escape_control_characters(group.name),
                group.runs[0].metric,
                str(group.end.seeds),
                text_format.over_seeds(group.start),
                text_format.over_seeds(group.end),
            )
            for group in groups
        ],
    )
    print_stdout("means over run seeds, from five seeds on with 95 % intervals (Student's t)")
    for sentence in (
        *(seed_verdict(group, groups[0]) for group in groups[1:]),
        *(group.left_out for group in groups if group.left_out),
    ):
        print_stdout(sentence)


def _as_json(runs: "Sequence[RunFacts]", groups: "Sequence[SeedGroup]") -> list[dict[str, object]]:
    from germline.report.run_comparison import compared_runs

    return [
        {
            "run": run.path,
            "advice": _advice(run),
            "damage": run.damage,
            "score": score_values(run.scores[-1]) if run.scores else None,
            **difference_values(found.difference),
        }
        for run, found in zip(runs, compared_runs(runs, groups), strict=True)
    ]


def _seed_groups_as_json(groups: "Sequence[SeedGroup]") -> list[dict[str, object]]:
    from germline.report.run_comparison import seed_difference_to_first, seed_verdict

    found = [seed_difference_to_first(group, groups[0]) for group in groups]
    return [
        {
            "name": group.name,
            "runs": [run.path for run in group.runs],
            "counted": [run.path for run in group.counted],
            "metric": group.runs[0].metric,
            "over_seeds": {
                "start": asdict(group.start),
                "best": asdict(group.best),
                "end": asdict(group.end),
            },
            "difference_to_first": one.mean if one else None,
            "difference_interval_95": list(one.interval) if one and one.interval else None,
            "difference_paired": one.paired if one else None,
            "verdict": seed_verdict(group, groups[0]),
        }
        for group, one in zip(groups, found, strict=True)
    ]


def _advice(run: "RunFacts") -> list[str]:
    """Return the advice about the reward and the scores of a run."""
    from germline.cli.train_summary import advice_lines
    from germline.report.random_reward import random_reward
    from germline.report.score_divergence_advice import score_divergence_advice

    about_reward = random_reward(run.config, run.run.rollouts())
    about_scores = (run.worse, *score_divergence_advice(run.config, run.path, run.scores))
    return ([about_reward] if about_reward else []) + advice_lines(*about_scores)
