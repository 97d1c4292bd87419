"""Engines that move together: one in this process, or several elsewhere that are kept equal.

local_fleet.py       one engine in this process: the smallest fleet
remote_fleet.py      engines elsewhere: the same updates, digests compared, what differs rebuilt
worker_pool.py        who is free and who is lost: jobs handed out, wherever the engines are
remote_engine.py   an engine elsewhere as a fleet sees it
worker_jobs.py        what an engine can be told to do: only names, numbers and text travel
byte_accounting.py    how much that is
engine_state.py       what a newcomer takes over from a peer
state_transfer.py     how that gets there
quorum.py      which members are in, and when a generation may close without the others
engine_processes.py   engines in processes of this machine, seen from their parent
worker_process.py      such a process, seen from inside
ray_actors.py  engines as actors of Ray
ray_cluster.py     Ray itself: started here or joined
wrapper.py       a fleet around another, to change how something is played
prompt_search_fleet.py    members that choose how they are prompted
"""

from germline.fleet.local_fleet import LocalFleet

__all__ = ["LocalFleet"]
