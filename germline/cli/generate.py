"""The command `germline generate`: generate answers to prompts."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from germline.cli.arguments import Generation, Source
from germline.cli.output import AsJson, print_json

GENERATE_EXAMPLES = (
    'germline generate runs/sums "What is 7 plus 8?"',
    'germline generate runs/sums "What is 7 plus 8?" --generation best',
    'germline generate nano "Once upon a time" --raw --temperature 0.8 --seed 1',
    'germline generate runs/on-vllm "What is 7 plus 8?" engine=inprocess',
)


def generate(  # noqa: PLR0913 - the options of the command
    source: Source,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PROMPT",
            help="The prompts to answer; words that start with engine= or engine. are settings.",
        ),
    ],
    *,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Send prompts through the chat template, or as they are. Default: as the task of "
            "the run sends its own, also for a model exported from it; through the template for "
            "any other model.",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest completion, in tokens.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    generation: Generation = None,
    as_json: AsJson = False,
) -> None:
    """Generate answers to prompts with a run or a model."""
    from germline.record.run_paths import check_source

    settings = [word for word in words if word.startswith(("engine=", "engine."))]
    prompts = [word for word in words if word not in settings]
    check_source(Path(source))

    from germline import run  # after the cheap checks, because it imports torch
    from germline.report.text_format import escape_control_characters

    completions = run.generate(
        source,
        prompts,
        chat=chat,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        overrides=settings,
        generation=generation,
    )
    if as_json:
        print_json(
            [
                {
                    "prompt": prompt,
                    "completion": answer.text,
                    "tokens": len(answer.tokens),
                    "finish": answer.finish,
                }
                for prompt, answer in zip(prompts, completions, strict=True)
            ]
        )
        return
    for prompt, answer in zip(prompts, completions, strict=True):
        if len(prompts) > 1:
            typer.secho(f"> {prompt}", bold=True)
        # A pipe gets the text unchanged; a terminal would interpret control characters in it.
        typer.echo(escape_control_characters(answer.text) if sys.stdout.isatty() else answer.text)
