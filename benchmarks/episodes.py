"""Episodes of six turns, compared with one turn of the same number of new tokens.

    python -m benchmarks.episodes                 # the table of docs/results.md
    python -m benchmarks.episodes --repeats 5 --clock cpu

Variants run in turn, several times, in one process, graded by a worker process; medians are
compared. No token ends a text, so all variants generate the same number of tokens.

- one turn: a single completion, of as many tokens as the model writes in six turns.
- one turn, read too: a single completion of as many tokens as the model writes and reads in six
  turns, those of the environment's messages included.
- six turns: an episode in which the environment answers each turn with a message of one line; the
  cache is kept between turns, so that a turn reads that message only.
- six turns, no cache kept: each turn reads the whole text so far again, as a loop around `generate`
  does.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.fixed_dialog import ANSWER, TURNS, answer_always, grade_length
from benchmarks.population import CLOCKS, Variant, engine_of, timed
from germline.config import Config, load_config
from germline.engines.conversation_turns import ConversationTurns
from germline.engines.inprocess import InProcessEngine
from germline.graders.pool import GraderPool
from germline.protocols import Conversations, Members, Reply
from germline.rollout import evaluate_members
from germline.strategies import make_strategy
from germline.types import Completion, Decoding, Example

PARTS = {"length": 1.0}


class ReadsAgain(InProcessEngine):
    """Begins a new batch of whole texts in each turn."""

    def converse(
        self, members: Members, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> None:
        """Hold conversations that all have as many turns."""
        turns = ConversationTurns.of(self.encoder, prompts, decoding, reply)
        texts = {place: self.encoder.encode(one) for place, one in turns.examples.items()}
        while texts:
            written: dict[tuple[int, int], Completion] = {}
            whole = [
                [
                    replace(example, token_ids=tuple(texts[member, row]))
                    for row, example in enumerate(examples)
                ]
                for member, examples in enumerate(prompts)
            ]
            super().converse(members, whole, decoding, partial(_note, written))
            texts = {
                place: [*texts[place], *written[place].tokens, *answer]
                for place, answer in turns.answers(written).items()
            }


def _note(
    written: dict[tuple[int, int], Completion],
    places: Sequence[tuple[int, int]],
    completions: Sequence[Completion],
) -> list[str | None]:
    """Note the completions of one turn, and end the conversations."""
    written.update(zip(places, completions, strict=True))
    return [None] * len(places)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8, help="new tokens of a turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    config = load_config(
        {"model": arguments.model, "strategy": {"population": arguments.members, "sigma": 0.001}}
    )
    print(
        f"{arguments.model}, {arguments.members} members, {arguments.examples} examples, {TURNS} "
        f"turns of {arguments.tokens} new tokens, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, medians of {arguments.repeats}, {arguments.clock} time\n"
    )
    with (
        GraderPool(grade_length, PARTS, PARTS) as single,
        GraderPool(answer_always, PARTS, PARTS, max_turns=TURNS) as episodes,
    ):
        variants = prepared(config, arguments, single, episodes)
        timings = timed(variants, arguments.repeats, CLOCKS[arguments.clock])
    names = ("one turn", "one turn, read too")
    print(f"| variant | seconds | tokens written | times {' | times '.join(names)} |")
    print("|---|---|---|---|---|")
    for name, timing in timings.items():
        times = [f"{timing.seconds / timings[other].seconds:.2f}" for other in names]
        print(f"| {name} | {timing.seconds:.3f} | {timing.tokens:,} | {' | '.join(times)} |")


def prepared(
    config: Config, arguments: argparse.Namespace, single: GraderPool, episodes: GraderPool
) -> dict[str, Variant]:
    """Return the variants; each evaluates every member on every example once."""
    engine = engine_of(config, "low_rank", endless=True)
    again = engine_of(config, "low_rank", endless=True)
    again.__class__ = ReadsAgain
    members = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
    examples = [
        Example(i, f"Guess the secret word of {i} letters.", "", chat=True)
        for i in range(arguments.examples)
    ]

    def evaluate(on: InProcessEngine, graders: GraderPool, tokens: int) -> Variant:
        decoding = Decoding(tokens)
        return lambda: (
            evaluate_members(on, graders, members, examples, config.microbatch, decoding).tokens
        )

    end = Completion("", (), "length", 0)
    read = (TURNS - 1) * len(engine.encoder.encode_answer(examples[0], end, ANSWER))
    return {
        "one turn": evaluate(engine, single, TURNS * arguments.tokens),
        "one turn, read too": evaluate(engine, single, TURNS * arguments.tokens + read),
        "six turns": evaluate(engine, episodes, arguments.tokens),
        "six turns, no cache kept": evaluate(again, episodes, arguments.tokens),
    }


if __name__ == "__main__":
    main()
