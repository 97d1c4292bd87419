"""Engines that move together: one in this process, or several elsewhere that are kept equal.

local.py      one engine in this process: the smallest fleet
remote.py     engines elsewhere: the same updates, digests compared, what differs rebuilt
crew.py       who is free and who is lost: jobs handed out, wherever the engines are
jobs.py       what an engine can be told to do: only names, numbers and text travel
processes.py  engines in processes of this machine, seen from their parent
worker.py     such a process, seen from inside
"""

from germline.fleet.local import LocalFleet

__all__ = ["LocalFleet"]
