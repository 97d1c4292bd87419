"""Lets `python -m germline` stand for the `germline` command."""

from germline.cli import main

main()
