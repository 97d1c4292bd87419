"""The command `germline report`: write an HTML page about runs."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import shell_completion
from germline.cli.output import (
    AsJson,
    difference_values,
    gain_values,
    print_json,
    print_stderr,
    print_stdout,
    print_table,
    score_values,
)

if TYPE_CHECKING:
    from germline.report.comparison import SeedGroup
    from germline.report.run_facts import HeldOutAnswer, RunFacts

SHOWN_ANSWERS, EXCERPT = 3, 60
"""Flagged answers that are printed, and characters of each."""

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

    The page shows findings, curves, answers before and after training, time, failures, settings and
    commands that use the run. It is self-contained. A run that is training or was stopped can be
    reported too.
    """
    from germline.record.seed_study import runs_of
    from germline.report.comparison import seed_groups
    from germline.report.html_page import page_path, read_runs, write_page

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
                "seed_groups": [_group_as_json(group, groups[0]) for group in groups],
            }
        )
    else:
        if len(facts) > 1:
            _print_comparison(facts, groups)
        for one in facts:
            if one.damage:
                print_stderr(f"the journal is damaged: {one.damage}", "red")
            of = f"{one.path}: " if len(facts) > 1 else ""
            for finding in one.findings:
                print_stdout(f"{of}{finding.level}: {finding.sentence}")
            for line in [*_behavior_lines(one), *_retained_lines(one)]:
                print_stdout(f"{of}{line}")
        earlier = ", in place of the page that was there" if replaces else ""
        print_stdout(f"written to {path}{earlier}")
    if browse and not webbrowser.open(path.resolve().as_uri()):
        print_stderr("no browser could be started: open the file in a browser")


def _behavior_lines(run: "RunFacts") -> list[str]:
    """Say how held-out answers changed since the start, with examples of flagged ones."""
    from germline.report.text_format import behavior_change, one_line_excerpt

    found = run.behavior
    if found is None:
        return []
    change = behavior_change(found)
    lines = [f"behavior of the held-out answers: {found.word}{f' ({change})' if change else ''}"]
    shown = [answer for answer in _flagged(run) if not found.rises.keys().isdisjoint(answer.flags)]
    for answer in shown[:SHOWN_ANSWERS]:
        names = ", ".join(answer.flags).replace("_", " ")
        prompt = one_line_excerpt(answer.prompt, EXCERPT)
        text = one_line_excerpt("".join(piece.text for piece in answer.after or ()), EXCERPT)
        lines.append(f"  {names}: {prompt!r} -> {text!r}")
    return lines


def _retained_lines(run: "RunFacts") -> list[str]:
    """Say what became of each of `retained`."""
    from germline.report.text_format import difference, retained_change

    return [
        f"retained: {retained_change(name, scores)}"
        + (f" (difference {difference(change)})" if change else "")
        for name, (scores, change) in run.kept.items()
    ]


def _behavior_as_json(run: "RunFacts") -> dict[str, object] | None:
    if run.behavior is None:
        return None
    return {
        "verdict": run.behavior.word,
        "start": run.scores[0].behavior,
        "now": run.scores[-1].behavior,
        "flagged": [
            {
                "prompt": answer.prompt,
                "completion": "".join(piece.text for piece in answer.after or ()),
                "flags": answer.flags,
            }
            for answer in _flagged(run)
        ],
    }


def _flagged(run: "RunFacts") -> "list[HeldOutAnswer]":
    return [answer for answer in run.answers if answer.flags]


def _print_comparison(runs: "Sequence[RunFacts]", groups: "Sequence[SeedGroup]") -> None:
    """Print the held-out scores of several runs, and their differences to the first run."""
    from germline.report import text_format
    from germline.report.comparison import compared_runs, comparison_heading

    print_table(
        ("run", "metric", "before", "after", "n", f"difference to {comparison_heading(groups)}"),
        [
            (
                str(run.path),
                run.metric,
                text_format.score(run.scores[0]) if run.scores else "",
                text_format.score(run.scores[-1]) if run.scores[1:] else "",
                str(run.scores[-1].n) if run.scores else "",
                found if isinstance(found, str) else text_format.difference(found),
            )
            for run, found in zip(runs, compared_runs(runs, groups), strict=True)
        ],
    )
    print_stdout(
        "differences of runs: paired over the same held-out examples, with 95 % intervals (of "
        "examples, not of run seeds)"
    )
    if not groups:
        return
    typer.echo("")
    rows = [
        (
            text_format.escape_control_characters(group.name),
            group.metric,
            str(len(group.counted)),
            *(text_format.over_seeds(group.statistics[name]) for name in ("start", "end")),
        )
        for group in groups
    ]
    print_table(("config", "metric", "seeds", "before", "after"), rows)
    print_stdout(text_format.MEANS_OVER_SEEDS)
    for group in groups:
        for sentence in filter(None, (group.verdict(groups[0]), group.left_out)):
            print_stdout(sentence)


def _as_json(runs: "Sequence[RunFacts]", groups: "Sequence[SeedGroup]") -> list[dict[str, object]]:
    from germline.report.comparison import compared_runs

    return [
        {
            "run": run.path,
            "findings": [finding.as_json() for finding in run.findings],
            "damage": run.damage,
            "behavior": _behavior_as_json(run),
            "score": score_values(run.scores[-1]) if run.scores else None,
            **difference_values(None if isinstance(found, str) else found),
            "since_start": run.gain and gain_values(run.gain),
        }
        for run, found in zip(runs, compared_runs(runs, groups), strict=True)
    ]


def _group_as_json(group: "SeedGroup", first: "SeedGroup") -> dict[str, object]:
    found = group.minus(first)
    return {
        "name": group.name,
        "runs": [run.path for run in group.runs],
        "counted": [run.path for run in group.counted],
        "metric": group.metric,
        "over_seeds": group.statistics,
        "difference_to_first": found and found.mean,
        "difference_interval_95": found and found.interval,
        "difference_paired": found and found.paired,
        "verdict": group.verdict(first),
    }
