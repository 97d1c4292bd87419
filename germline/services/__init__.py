"""HTTP services over the objects of `germline.run`: `germline serve` and `germline scorer`.

They need the extra `serve`. Token, limits, errors and the OpenAI API are those of
`germline.endpoint`.
"""
