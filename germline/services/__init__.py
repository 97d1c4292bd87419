"""HTTP services over the objects of `germline.run`, on FastAPI and uvicorn.

They need the extra `serve`. `http_app` (token, limits, errors) and `http_server` (address, start,
end) are the same for every service.
"""
