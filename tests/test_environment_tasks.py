"""Tasks of environments: those of a file, and those that are shipped."""

import pytest

from germline.config import Environment, Verifiers, Wordle, load_config
from germline.environments.wordle import guess_feedback, last_guess
from germline.example import Transcript
from germline.graders.pool import GraderPool
from germline.protocols import EpisodeTask
from germline.run.build_parts import make_graders
from germline.tasks import make_task
from germline.tasks.python_inputs import read_inputs
from germline.types import GermlineError
from tests.hang_limit import HANG_S

# files


FILE = """
class Mine:
    def reset(self, word):
        self.word = word

    def step(self, reply):
        return "no", reply == self.word, float(reply == self.word)


train = [{"prompt": "Say it.", "word": word} for word in "abcdefghij"]
settings = {"max_turns": 4, "max_new_tokens": 7, "stop": "!", "chat": False}
"""
TOOL_FILE = """
class Mine:
    def reset(self, **row): ...
    def look(self, where: str) -> str:
        \"\"\"Look.\"\"\"
    def get_reward(self):
        return 1.0

train = [{"prompt": f"Look {n} times.", "n": n} for n in range(10)]
"""


def task(folder, text, **more):
    path = folder / "mine.py"
    path.write_text(text, encoding="utf-8")
    return make_task(Environment(path=path, **more))


def test_a_file_makes_a_task_whose_episodes_a_run_grades(tmp_path):
    assert task(tmp_path, FILE, max_turns=2, stop=()).max_turns == 2  # the config overrides it
    more = "class Other(Mine): ...\nenvironment = Other"
    assert "Other of" in task(tmp_path, FILE + more).episode_grader.name
    made = task(tmp_path, FILE)
    assert (made.name, made.max_turns, made.max_new_tokens, made.stop) == ("mine", 4, 7, ("!",))
    assert [len(made.examples(split)) for split in ("train", "test")] == [8, 2]
    config = load_config({"task": {"kind": "environment", "path": str(tmp_path / "mine.py")}})
    (example, *_) = made.examples("test")
    with make_graders(config, made) as pool:
        assert isinstance(pool, GraderPool)
        replies = ((), ("?",), ("?", example.facts["word"]))
        asked = [Transcript(said, 0) for said in replies]
        grades = pool.submit(asked, [example] * 3).result(timeout=HANG_S)
    assert [grade.observation for grade in grades] == ["", "no", None]
    assert grades[-1].reward == 1.0


def test_tools_are_described_in_a_system_message_or_in_the_prompt(tmp_path):
    (chat, *_) = task(tmp_path, TOOL_FILE).examples("train")
    ((role, system),) = chat.context
    assert role == "system"
    assert '"name": "look"' in system
    assert '{"name": "<name of the tool>", "arguments": {<arguments by name>}}' in system
    (longer, *_) = task(tmp_path, TOOL_FILE, system_prompt="Be quick.").examples("train")
    assert longer.context[0][1] == f"Be quick.\n\n{system}"
    (plain, *_) = task(tmp_path, TOOL_FILE, chat=False).examples("train")
    assert plain.prompt == f"{system}\n\n{chat.prompt}"
    assert not plain.context


def test_thinking_is_removed_from_every_reply(tmp_path):
    made = task(tmp_path, FILE, strip_thinking=True)
    (example, *_) = made.examples("train")
    replies = ("<think>a</think>no", f"<think>now</think>{example.facts['word']}")
    assert made.episode_grader(Transcript(replies, 0), example) == {"reward": 1.0}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("train = []", r"mine\.py: one class must have reset.*found none"),
        (FILE + "class Other:\n    def reset(self): ...", "one class must .*found Mine, Other"),
        (FILE + "environment = 7", "`environment` must be a class of the file.*found 7"),
        (FILE.replace("def reset(self, word)", "def reset(self, missing)"), "field `missing"),
        (FILE.replace("def step", "def _step"), "step.reply. or public methods"),
        (FILE.replace("def reset", "def __init__"), "found none"),
        (FILE.replace("def reset", "def __init__(self, a): ...\n    def reset"), "without argum"),
        (FILE + "settings['rubric'] = {'reward': 0}", r"settings\.rubric: every weight is 0"),
        (FILE + "settings['max_turns'] = True", r"mine\.py: max_turns=true: "),
        (FILE + "settings['metric'] = 'won'", r"settings\['metric'\] is 'won'.*are reward"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, complaint):
    with pytest.raises(GermlineError, match=complaint):
        task(tmp_path, text)
    with pytest.raises(GermlineError, match=r"task\.path: .*gone\.py' cannot be read"):
        make_task(Environment(path=tmp_path / "gone.py"))


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ("", "environment"),
        ("def reward(completion, example): ...", "python"),
        ("rubric = {}", "python"),
        ("rubric = {}\nenvironment = Mine", "environment"),
        ("def wrong(:", "python"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file_alone_is_an_environment_or_rewards(tmp_path, more, kind, encoding):
    path = tmp_path / "mine.py"
    path.write_text(FILE + more, encoding=encoding)
    assert load_config({"task": str(path)}).task.kind == kind
    assert load_config({"task": {"path": str(path)}}).task.kind == kind


def test_reward_functions_from_python_cannot_grade_episodes():
    inputs = read_inputs(lambda completion, example: 1.0, None)
    with pytest.raises(GermlineError, match=r"the environment of task\.kind=wordle rewards"):
        make_task(Wordle(reward_functions=inputs.weights), inputs)


def test_a_task_of_verifiers_says_what_to_install_where_it_is_not():
    with pytest.raises(GermlineError, match=r"found none: pip install 'germline\[verifiers\]'"):
        make_task(Verifiers(env="owner/name@0.1", args={"largest": 3}))
    assert Verifiers(env="owner/name@0.1").title == "name"


# wordle


def test_repeated_letters_are_marked_as_often_as_they_are_in_the_word():
    assert guess_feedback("sheep", "lemon") == "XXYXX"
    assert guess_feedback("apple", "plate") == "YYXYG"
    assert guess_feedback("eerie", "there") == "YXYXG"
    assert last_guess("[apple] no, [Crane]!") == "crane"
    assert last_guess("crane") == ""


def test_a_reply_without_a_valid_guess_uses_up_a_turn():
    made = make_task(Wordle())
    assert isinstance(made, EpisodeTask)
    (example, *_) = made.examples("test")
    replies = ("My guess is apple.", "[zzzzz]", "[apple]", *["?"] * 3)
    messages = [
        made.episode_grader(Transcript(replies[:turn], 0), example)
        for turn in range(1, len(replies))
    ]
    marks = " ".join(guess_feedback("apple", example.facts["secret"]))
    assert messages[1] == "Guess the secret word of 5 letters."
    assert messages[2] == f"Guess the secret word of 5 letters.\na p p l e: {marks}"
    value = (marks.count("G") + 0.5 * marks.count("Y")) / 5
    assert made.episode_grader(Transcript(replies, 0), example) == {
        "marks": pytest.approx(value),
        "valid": pytest.approx(1 / 6),
        "won": 0.0,
    }
