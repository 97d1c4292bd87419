"""What the engines share whose model runs in an inference engine: vLLM or SGLang.

engine.py              the base class of these engines: fp32 masters here, the serving copy there
completion_decoder.py  the returned tokens as completions
masters_spec.py        the settings from which another process builds the same masters
serialization.py       members and updates as JSON
http_client.py         JSON over HTTP, with retries
"""
