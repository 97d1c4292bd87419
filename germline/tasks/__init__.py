"""Tasks: what to play and how it is scored; one file per task.

A task is made from its section of the config and satisfies `germline.protocols.Task`.
"""

TASKS: dict[str, str] = {
    "arithmetic": "germline.tasks.arithmetic:ArithmeticTask",
    "conciseness": "germline.tasks.conciseness:ConcisenessTask",
    "countdown": "germline.tasks.countdown:CountdownTask",
    "jsonl": "germline.tasks.jsonl:JsonlTask",
    "multiplication": "germline.tasks.multiplication:MultiplicationTask",
    "python": "germline.tasks.python_file:PythonTask",
}
"""Short name -> where it lives, for `germline.registry.resolve`."""
