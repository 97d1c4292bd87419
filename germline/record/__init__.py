"""The run directory: what a training writes, and how it is read back.

`directory` names the files and fixes the order in which they are written; `journal` is the
replayable list of updates; `rows` says what stands in a row; `lines` reads and writes JSON lines;
`tensorboard` is a tracker; `claims` keeps a folder to one writer.
"""

from germline.record.journal import Journal, JournalEntry
from germline.record.metrics_rows import HeldOutRow, HeldOutSample
from germline.record.run_directory import RunDirectory

__all__ = ["HeldOutRow", "HeldOutSample", "Journal", "JournalEntry", "RunDirectory"]
