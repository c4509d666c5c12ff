"""``python -m examples.social``, from the root of the repository."""

from __future__ import annotations

import sys

from shardkit.cli.app import Application

NAME = "examples.social"

if __name__ == "__main__":
    # The application of the command line, for its error messages and exit codes.
    sections = {"Examples": {NAME: ("command:demo", "Simulate a social network.")}}
    application = Application(sections=sections, package="examples.social")
    application.main([NAME, *sys.argv[1:]], prog_name="python -m")
