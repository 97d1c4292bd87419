"""The short check of a custom task at the start of a run, and what it shares with `task_check`."""

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from germline.config import Config, CustomTask, TaskBase
from germline.config.row_tasks import FileTask
from germline.protocols import EpisodeTask, Task
from germline.scorers.scored_graders import Graders
from germline.types import Example, GermlineError, Grade

log = logging.getLogger(__name__)

QUICK = 4
"""Number of examples that are tried at the start of a run."""

Verdict = Literal["ok", "warning", "wrong"]

LONGEST_SHOWN = 60
"""Characters of a completion that a remark shows."""


@dataclass(frozen=True)
class TaskCheckRow:
    """One row of a check: what was tried, how often, the rewards it earned, and the verdict.

    Attributes:
        text: the whole of the hostile text that earns as much as a gold answer; None for any
            other row. The remark shows its beginning.
    """

    tried: str
    count: int
    rewards: tuple[float, ...]
    verdict: Verdict
    remark: str
    text: str | None = None


def check_custom_reward(config: Config, task: Task, graders: Graders) -> None:
    """Refuse a custom task whose reward is broken.

    A reward that is not deterministic gets a warning in the log, as does an environment that fails
    on all replies that are tried: the model may find better ones.
    """
    section = config.task
    if not (isinstance(section, CustomTask) or section.reward_functions or section.scorers):
        return
    place = f"task.path: {config.task.path}" if isinstance(config.task, FileTask) else "data"
    place = f"reward {task.metric}()" if config.task.reward_functions else place
    examples = spread(task.examples("train"), QUICK)
    texts = [example.answer or example.prompt for example in examples]
    completions = [_completion(section, text) for text in texts]
    grades = graders.submit(completions, examples).result()
    again = graders.submit(completions, examples).result()
    for text, one, two in zip(texts, grades, again, strict=True):
        if one.reward != two.reward and not math.isnan(one.reward + two.reward):
            log.warning(
                "%s: the reward of the completion %s was %g and then %g: a reward that "
                "is not deterministic adds noise to the fitness, and a resumed run gets other "
                "results; compute it from the completion and the row alone",
                *(place, short_text(text), one.reward, two.reward),
            )
            break
    _check_scorers(section, grades)
    if all(grade.failure for grade in grades):
        gold = ", gold answers included" if any(example.answer for example in examples) else ""
        failed = f"fails on every answer that was tried{gold}: {grades[0].failure}"
        if not isinstance(task, EpisodeTask):
            raise GermlineError(
                f"{place}: the reward {failed}. `germline check TASK` shows more of a task "
                "in a file"
            )
        log.warning(
            "%s: the environment %s; an episode that fails earns the floor. `germline check TASK` "
            "shows more of a task in a file",
            *(place, failed),
        )
    elif not isinstance(task, EpisodeTask) and not section.scorers:  # they may cost money
        # A reward that is below its floor for a plain wrong answer is refused by the graders.
        golden = [example for example in examples if example.answer]
        wrong = wrong_answers([example.answer for example in golden])
        completions = [_completion(section, text) for text, _ in wrong]
        graders.submit(completions, [golden[at] for _, at in wrong]).result()


def with_digest(config: Config, task: Task) -> Config:
    """Write the digest of the code and rows of a custom task into the config."""
    digest: str | None = getattr(task, "digest", None)
    if not isinstance(config.task, CustomTask) or digest is None:
        return config
    recorded = config.task.model_copy(update={"digest": digest})
    return config.model_copy(update={"task": recorded})


def _completion(section: TaskBase, answer: str) -> str:
    """Return a completion that ends thinking, which the model's template may open, and answers."""
    return f"</{section.thinking_tag}>{answer}" if section.strip_thinking else answer


def _check_scorers(section: TaskBase, grades: Sequence[Grade]) -> None:
    """Refuse to begin with a scorer that scored none of some completions."""
    for name, scorer in section.scorers.items():
        if all(math.isnan(grade.parts[name]) for grade in grades):
            remedy = "; start its server, or correct its url" if hasattr(scorer, "url") else ""
            raise GermlineError(
                f"task.scorers.{name} (kind={scorer.kind}) scored none of the {len(grades)} "
                f"completions that were tried: {grades[0].failure}{remedy}"
            )


def examples_row(task: Task) -> TaskCheckRow:
    """Count the examples of a task, and warn of prompts that are in both splits."""
    train, test = task.examples("train"), task.examples("test")

    def counted(split: Sequence[Example], name: str) -> str:
        different = len(_contents(task, split))
        some = "" if different == len(split) else f" (different prompts: {different})"
        return f"{len(split)} {name}{some}"

    both = prompts_in_both(task)
    remark = f"{counted(train, 'to train')}, {counted(test, 'held out')}"
    if both:
        remark += f"; {len(both)} prompts are in both, such as {short_text(both[0])}"
    return TaskCheckRow("examples", len(train) + len(test), (), "warning" if both else "ok", remark)


def prompts_in_both(task: Task) -> list[str]:
    """Return the held-out prompts that are also trained on, each once and sorted."""
    trained = _contents(task, task.examples("train"))
    held_out = _contents(task, task.examples("test"))
    return sorted({held_out[content].prompt for content in held_out.keys() & trained.keys()})


def _contents(task: Task, examples: Sequence[Example]) -> dict[str, Example]:
    """Return different examples by prompt; those of an environment, whose rows say more, by row."""
    if isinstance(task, EpisodeTask):
        return {repr((one.prompt, one.facts)): one for one in examples}
    return {repr((one.context, one.prompt)): one for one in examples}


def short_text(text: str) -> str:
    """Return the beginning of a completion, quoted."""
    if len(text) <= LONGEST_SHOWN:
        return repr(text)
    return f"{text[:LONGEST_SHOWN]!r} and {len(text) - LONGEST_SHOWN:,} more characters"


def spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Return `count` examples, evenly spaced over a split."""
    return [examples[place] for place in places(len(examples), count)]


def places(total: int, count: int) -> list[int]:
    """Return `count` different numbers, evenly spaced over `range(total)`."""
    return [place * total // min(count, total) for place in range(min(count, total))]


def wrong_answers(gold: Sequence[str]) -> list[tuple[str, int]]:
    """Return plain wrong answers of the right kind, each with the place of the gold answer.

    An answer is the gold one of another example, and 0 where the gold answer is a number.
    """
    wrong: list[tuple[str, int]] = []
    for place, answer in enumerate(gold):
        others = (other for other in (*gold[place + 1 :], *gold[:place]) if other != answer)
        wrong += [(other, place) for other in itertools.islice(others, 1)]
        if _number(answer):
            wrong.append(("0", place))
    return wrong


def _number(answer: str) -> float | None:
    """Return the number that an answer is; None for any other answer."""
    try:
        return float(answer.replace(",", ""))
    except ValueError:
        return None
