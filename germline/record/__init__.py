"""The run directory: the files that training writes, and how they are read.

`run_directory` names the files and the order in which they are written. `journal` is the replayable
list of updates. `metrics_rows` defines the rows of the other files, and `atomic_files` reads and
writes JSON lines. `run_paths` chooses the folder of a new run, and allows one writer per folder.
"""

from germline.record.journal import Journal, JournalEntry
from germline.record.metrics_rows import HeldOutRow, HeldOutSample
from germline.record.run_directory import RunDirectory

__all__ = ["HeldOutRow", "HeldOutSample", "Journal", "JournalEntry", "RunDirectory"]
