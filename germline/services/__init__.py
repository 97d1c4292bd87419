"""HTTP services over the objects of `germline.run`: models over OpenAI's API, and reward models.

They need the extra `serve`. Token, errors and the OpenAI API are those of
`germline.endpoint`.
"""
