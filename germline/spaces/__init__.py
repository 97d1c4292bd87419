"""Spaces: which tensors are searched, and how a direction changes each of them."""

from germline.spaces.base import make_space as make_space
