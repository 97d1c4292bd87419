"""What a run checks and records of a custom task as it begins; `task_check` has all checks."""

import logging
import math
from collections.abc import Sequence

from germline.config import Config, CustomTask, TaskBase
from germline.config.row_tasks import FileTask
from germline.protocols import EpisodeTask, Task
from germline.run.task_check_row import short_text
from germline.run.tried_answers import QUICK, spread, wrong_answers
from germline.scorers.scored_graders import Graders
from germline.types import GermlineError, Grade

log = logging.getLogger(__name__)


def check_custom_reward(config: Config, task: Task, graders: Graders) -> None:
    """Refuse a custom task whose reward is broken.

    A reward that is not deterministic gets a warning in the log, as does an environment that fails
    on all replies that are tried: the model may find better ones.

    Raises:
        GermlineError: no answer can be graded, or a reward is not a number.
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
                f"{place}: the reward {failed}. `germline check` shows more of a task file"
            )
        log.warning(
            "%s: the environment %s; an episode that fails earns the floor. `germline check` "
            "shows more of a task file",
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
