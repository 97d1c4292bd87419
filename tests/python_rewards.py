"""Reward functions given from Python; a grader process imports nothing else with them."""


def length(completion, example):
    return min(len(completion), 9) / 9


def trl_length(prompts, completions, level, **columns):
    assert set(columns) == {"answer"}
    return [min(len(one), 9) / 9 for one in completions]


def vowels(completion, example):
    return sum(one in "aeiou" for one in completion)
