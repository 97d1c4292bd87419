"""Graders: from a completion to the parts of a rubric, in worker processes.

A grader takes (text, example) and returns part -> value. It runs in a process of its own because
model text can hang or crash it; it must therefore be picklable: a function of a module, or a small
frozen dataclass with `__call__`. This file imports nothing, so that a worker starts quickly.
"""
