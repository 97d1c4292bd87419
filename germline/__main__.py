"""Run the `germline` command by `python -m germline`."""

from germline.cli import main

main()
