"""Engines that move together: one in this process, or several elsewhere that are kept equal.

local.py       one engine in this process: the smallest fleet
remote.py      engines elsewhere: the same updates, digests compared, what differs rebuilt
crew.py        who is free and who is lost: jobs handed out, wherever the engines are
elsewhere.py   an engine elsewhere as a fleet sees it
jobs.py        what an engine can be told to do: only names, numbers and text travel
weighing.py    how much that is
state.py       what a newcomer takes over from a peer
carrier.py     how that gets there
quorum.py      which members are in, and when a generation may close without the others
processes.py   engines in processes of this machine, seen from their parent
worker.py      such a process, seen from inside
ray_actors.py  engines as actors of Ray
cluster.py     Ray itself: started here or joined
outer.py       a fleet around another, to change how something is played
choosing.py    members that choose how they are prompted
"""

from germline.fleet.local import LocalFleet

__all__ = ["LocalFleet"]
