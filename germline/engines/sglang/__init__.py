"""The engine `sglang`: an SGLang server, reached by HTTP; nothing of SGLang is imported.

engine.py        the engine: members as adapters of one batch, or written one after another
client.py        the requests to a server, and its responses
server_check.py  whether a server is the one a run needs, and accepts what is written
launch.py        a server of the run's own: started, waited for, stopped with the run
watchdog.py      the process between run and server, which ends the server when the run is gone
"""
