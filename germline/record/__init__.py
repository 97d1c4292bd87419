"""The run directory: what a training writes, and how it is read back.

`directory` names the files and fixes the order in which they are written; `journal` is the
replayable list of updates; `rows` says what stands in a row; `lines` reads and writes JSON lines;
`tensorboard` is a tracker; `claims` keeps a folder to one writer.
"""

from germline.record.directory import RunDirectory
from germline.record.journal import Entry, Journal
from germline.record.rows import HeldOut, Sample

__all__ = ["Entry", "HeldOut", "Journal", "RunDirectory", "Sample"]
