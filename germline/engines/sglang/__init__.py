"""An SGLang server as engine: germline speaks HTTP with it, and imports nothing of it.

server.py     members on a server: adapters in one batch, or weights written one after another
client.py     what is asked of a server, and what it answers
server_check.py   whether a server is the one a run needs
write_check.py      whether what is written into it arrives
launch.py  a server of the run's own: started, waited for, stopped with the run
watchdog.py      the process between, which ends the server when the run is gone
"""
