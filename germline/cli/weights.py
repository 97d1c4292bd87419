"""The commands that use weights: `germline export`, `generate` and `serve`."""

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from germline.cli.arguments import (
    MODEL_SETTINGS,
    Generation,
    Run,
    Source,
    read_section,
    split_words,
)
from germline.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from germline.endpoint.http_app import UvicornService


EXPORT_EXAMPLES = (
    "germline export runs/sums --out sums-model",
    "germline export runs/sums --generation best --out sums-best",
    "germline export runs/adapter --out merged-model --merged",
    "germline export runs/sums --generation 25 --verify",
)


def export(
    path: Run,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder to write.")] = None,
    generation: Generation = None,
    *,
    merged: Annotated[
        bool | None,
        typer.Option(
            "--merged/--adapter",
            help="Write a Hugging Face model folder, or a PEFT adapter. Default: the adapter if "
            "the run trained one (space.kind=lora).",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Rebuild the weights from the base model and the journal alone, without "
            "snapshots (except of gradients), and verify their digest; without --out, nothing is "
            "written.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a run as a folder: the newest, or those of another generation.

    The folder has a Hugging Face model, which plain transformers loads; or, if the run trained one,
    a PEFT adapter, which plain peft loads. Both generate the same tokens.
    """
    from germline import run
    from germline.record import RunDirectory
    from germline.run.weights import find_generation
    from germline.types import GermlineError

    if out is None and (merged is not None or not verify):
        raise GermlineError("export: name the folder to write, --out DIR, or only --verify")
    form: Any = {None: None, True: "merged", False: "adapter"}[merged]
    directory = RunDirectory.open(path)
    digest = None
    if verify:
        number = find_generation(directory, generation)
        digest = run.replay(path, number)
    if out is not None:
        number = run.export(path, out, form, generation)
    if as_json:
        files = sorted(one.name for one in out.iterdir()) if out else []
        values = {"run": path, "out": out, "generation": number, "files": files, "digest": digest}
        print_json(values)
        return
    if digest is not None:
        typer.echo(f"generation {number} rebuilt, digest verified: {digest}")
    if out is None:
        return
    typer.echo(f"written to {out}")
    if directory.config.method.trains_center:
        which = f"after generation {number}" if number >= 0 else "before training"
        score = ", which have the best held-out score" if generation == "best" else ""
        typer.echo(f"weights {which} of {path}{score}")
    typer.echo(f'next:\n  germline generate {shlex.quote(str(out))} "your prompt"')


GENERATE_EXAMPLES = (
    'germline generate runs/sums "What is 7 plus 8?"',
    'germline generate runs/sums "What is 7 plus 8?" --generation best',
    'germline generate nano "Once upon a time" --raw --temperature 0.8 --seed 1',
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


TOKEN_VARIABLE = "GERMLINE_TOKEN"

SERVE_EXAMPLES = (
    "germline serve runs/sums",
    "germline serve runs/sums --generation best --port 9000",
    "GERMLINE_TOKEN=secret germline serve runs/sums --host 0.0.0.0",
    "germline serve --reward models/reward --cost models/cost template=pku",
)


def serve(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="A run or a model, with settings engine.* and microbatch.*; or, with --reward or "
            "--cost, settings of these models: template, label, output, max_tokens, batch_size, "
            "device and dtype.",
        ),
    ] = None,
    generation: Generation = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; beyond loopback, set $GERMLINE_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen at; 0: any free one. Default: 8000, scorers 8100.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Serve this sequence classifier's scores as `rewards`."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Serve this sequence classifier's scores as `costs`."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Serve a run or a model to clients of OpenAI's API, or reward models to trainings.

    The `model` of a request is base, center (with --generation, the weights after that one), gen-12
    (those after generation 12) or gen-12/member-7 (a member that generation 12 evaluated).

    With --reward, --cost or both it serves these models for `task.scorers` with kind=germline:
    `POST /score_batch` takes prompts and responses, `GET /health` says whether the models are
    loaded.

    Ctrl-C ends the server.
    """
    from germline.config.scorers import ClassifierSettings
    from germline.endpoint import serve_extra
    from germline.record.run_paths import check_source
    from germline.types import GermlineError

    scorers = {role: one for role, one in (("reward", reward), ("cost", cost)) if one is not None}
    sources, settings = split_words("serve", words, ("",) if scorers else MODEL_SETTINGS)
    if len(sources) + bool(scorers) != 1:
        raise GermlineError(
            f"serve: found {', '.join([*sources, *scorers.values()]) or 'nothing to serve'}: name "
            "one run or model, or --reward MODEL, --cost MODEL or both"
        )
    if scorers and generation is not None:
        raise GermlineError(
            "serve: --generation would be ignored with --reward and --cost: drop it"
        )
    if sources:
        check_source(Path(sources[0]))
    with serve_extra("germline serve"):
        from germline.services.scorer import scorer_service
        from germline.services.serve import endpoint
    token = os.environ.get(TOKEN_VARIABLE) or None
    port = (8100 if scorers else 8000) if port is None else port
    if scorers:
        classifier = read_section("serve", ClassifierSettings, settings, "")
        with scorer_service(scorers, classifier, host, port, token) as server:
            values: dict[str, object] = {"url": server.url, "models": scorers}
            lines = f"{' and '.join(scorers.values())} at {server.url}"
            _run_until_interrupt(server, lines, values, token, as_json=as_json)
        return
    with endpoint(sources[0], generation, settings, host, port, token) as (server, weights):
        names, center = weights.names(), weights.select("center").fingerprint
        values = {"base_url": f"{server.url}/v1", "models": names, "center": center}
        shown = ", ".join(names if len(names) <= 4 else [*names[:3], "...", names[-1]])
        lines = f"{sources[0]} at {server.url}/v1\nmodels: {shown}; center has digest {center[:16]}"
        if not weights.sends_chats:
            lines += (
                "\nThe run sent its prompts as they are: ask /v1/completions. /v1/chat/completions "
                "uses the chat template, which the run did not."
            )
        values["chat"] = weights.sends_chats
        _run_until_interrupt(server, lines, values, token, as_json=as_json)


def _run_until_interrupt(
    server: "UvicornService",
    lines: str,
    values: Mapping[str, object],
    token: str | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json({**values, "needs_token": token is not None})
    else:
        typer.echo(f"{lines}\nCtrl-C ends the server.")
    with suppress(KeyboardInterrupt):
        server.run()
    if not as_json:
        typer.echo("The server has ended.")
