"""Reward functions given from Python, an environment that fails; graders import nothing else."""


def length(completion, example):
    return min(len(completion), 9) / 9


def trl_length(prompts, completions, level, **columns):
    assert set(columns) == {"answer"}
    return [min(len(one), 9) / 9 for one in completions]


def vowels(completion, example):
    return sum(one in "aeiou" for one in completion)


def fails_midway(transcript, example):
    if example.facts["turns"] == len(transcript.replies):
        raise ValueError("no such move")
    return {"won": 0.5} if transcript.is_final else "go on"
