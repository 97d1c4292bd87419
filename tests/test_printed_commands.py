"""Commands that README, docs and help print: their settings are real, and the cheap ones run."""

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.config import load_config
from germline.config.config_files import find_config
from germline.studies.sweep_results import NO_BEST
from tests.small_runs import small
from tests.test_docs import PAGES, ROOT, commands

NOT_RUN = re.compile(
    r"vllm|sglang|ray\.yaml|^germline (train|check|eval|serve).*(Qwen/|qwen|my-mixture)|runs/qwen"
    r"|models/SmolLM2|short_answers|runs/short|http://localhost"
    r"|^germline (elo|analyze|compare|sweep|serve)"
)
"""What needs other models, environments, services or dozens of runs, and has tests of its own."""
FOLLOWED_ELSEWHERE = {"own-task.md"}  # tests/test_own_task_page.py
NAMED = re.compile(r"^`([\w.]+\.(?:yaml|jsonl|py))`:\n```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
MEASURED = ("arithmetic", "countdown", "demo", "thermostat", "wordle")
KNOWN = ("strategy.sigma=0.01", "strategy.learning_rate=0.01")
"""What these configs would measure, which takes four times as long as the run."""
TINY = ("batch_size=4", "strategy.population=4", "held_out.examples=4")


def printed(page):
    """Return the words of each command of a page, without what a shell does with its output."""
    lines = [line for line in commands(page) if "[OPTIONS]" not in line]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        end = next((i for i, word in enumerate(words) if word in (">", "|")), len(words))
        found.append((line, words[1:end]))
    return found


WITH_COMMANDS = [page for page in PAGES if printed(page)]


def ids(page):
    return str(page.relative_to(ROOT))


def named_files(page):
    return dict(NAMED.findall(page.read_text(encoding="utf-8")))


def base(page, words):
    """Return the config that the overrides of a command are laid over."""
    verb, source = words[0], next((word for word in words[1:] if "=" not in word), "")
    if source in named_files(page) and source.endswith(".yaml"):
        return yaml.safe_load(named_files(page)[source])
    if source.endswith(".jsonl"):
        return {"task": {"kind": "jsonl", "path": source, "reward": "exact"}}
    shipped = verb in ("train", "probe") and (ROOT / "configs" / Path(source).stem).with_suffix(
        ".yaml"
    )
    return find_config(Path(source)) if shipped and shipped.exists() else {}


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=ids)
def test_settings_of_a_printed_command_are_real(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line, words in printed(page):
        if "--reward" in words or words[0] == "analyze":
            continue  # settings of a reward model, or of an analysis
        others = [word for last, word in pairwise(["", *words]) if last != "--budget"]
        overrides = [word for word in others if re.match(r"[a-z_.]+=", word)]
        overrides = [
            word for word in overrides if not word.startswith(("seeds=", "judge.", "sweep."))
        ]
        try:
            load_config(base(page, words), overrides)
        except germline.GermlineError as error:
            pytest.fail(f"{line}\n{error}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    for name, space in (("sums", "low_rank"), ("adapter", "lora")):
        settings = {"task": "arithmetic", "space": space, "generations": 2, "seed": len(name)}
        strategy = {"population": 4, "sigma": 0.01, "learning_rate": 0.01}
        tiny = {"batch_size": 4, "strategy": strategy, "held_out": {"examples": 4}}
        germline.train({**settings, **tiny}, folder / name).run()
    return folder


def prepare(page, words, finished):
    """Lay out what a reader of a page has by the time of a command."""
    for word in words[1:]:
        if re.fullmatch(r"runs/[\w-]+", word) and words[words.index(word) - 1] != "--out":
            run = "adapter" if "adapter" in word or word == "runs/RUN" else "sums"
            if not Path(word).exists():
                shutil.copytree(finished / run, word)
    line = " ".join(words).replace("--out my-adapter", "")
    if "my-adapter" in line and not Path("my-adapter").exists():
        germline.export(finished / "adapter", "my-adapter")
    for name, text in {
        "rows.jsonl": "".join(
            f'{{"prompt": "What is 3 + {i}?", "answer": {3 + i}}}\n' for i in range(5)
        ),
        "my.yaml": "task: arithmetic\n",
        **named_files(page),
    }.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("experiments/march").mkdir(parents=True, exist_ok=True)
    probed = Path("probes/sums/probe.yaml")
    if str(probed) in words and not probed.exists():
        probed.parent.mkdir(parents=True, exist_ok=True)
        probed.write_text("strategy: {sigma: 0.03, learning_rate: 0.04}\n", encoding="utf-8")


def shortened(words):
    """Return a command that does the same with less: fewer generations, members and examples."""
    verb = words[0]
    few = {"--generation": "0", "-g": "0", "--from": "0", "--limit": "4"}
    words = [
        few[before] if before in few and word.isdigit() else word
        for before, word in zip(("", *words), words, strict=False)
    ]
    if verb == "train":
        is_measured = Path(words[1]).stem in MEASURED and not any("strategy" in w for w in words)
        known = KNOWN if is_measured and "probe.yaml" not in words[-1] else ()
        words = [*(re.sub(r"^seeds=.*", "seeds=0,1", word) for word in words), *known]
        settings = [word for word in words[2:] if re.match(r"(?!seeds=)[a-z_.]+=", word)]
        return [*words, *small(load_config(words[1], settings))]
    if verb == "probe":
        return [*words, *TINY, "generations=2", "--minutes", "10"]
    if verb == "eval" and "--limit" not in words:
        return [*words, "--limit", "4"]
    if verb == "resume":
        return [re.sub(r"^generations=\d+$", "generations=3", word) for word in words]
    return words


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=ids)
def test_printed_commands_run(page, finished, tmp_path, monkeypatch):
    if page.name in FOLLOWED_ELSEWHERE:
        pytest.skip("followed by a test of its own: tests/test_own_task_page.py")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for line, words in printed(page):
        if NOT_RUN.search(line):
            continue
        prepare(page, words, finished)
        done = CliRunner().invoke(app, shortened(words))
        # 1: the run does not fit here, or no trial of a short sweep is better than its start.
        may_be_1 = "--dry-run" in words or NO_BEST in done.output
        fine = (0, 1) if may_be_1 else (0,)
        assert done.exit_code in fine, (line, done.output, done.exception)
