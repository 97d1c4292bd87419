"""An OpenAI-compatible endpoint over one engine, on FastAPI and uvicorn.

It needs the extra `serve`. `http_app` (token, limits, errors) and `http_server` (address, start,
end) are the same for every service, also for those that have no engine.
"""
