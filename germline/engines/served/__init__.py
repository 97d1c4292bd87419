"""What all engines share whose model runs in an inference engine: vLLM or SGLang.

engine.py    the fp32 masters here, the serving copy there
server_protocol.py    what such an inference engine must be able to do
detokenize.py     the tokens that come back, as completions
masters_spec.py    how masters are made of a model, also elsewhere
serialization.py      members and updates as text
http_client.py      asking a server, also one that is away for a while
masters_only.py  masters alone, for what needs no inference engine
"""
