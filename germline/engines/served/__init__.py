"""What the engines share whose model runs in an inference engine: vLLM or SGLang.

engine.py              the base class of these engines: fp32 masters here, the serving copy there
completion_decoder.py  the returned tokens as completions
masters.py             builds masters of a model, the same in every process
http_client.py         JSON over HTTP, with retries
"""
