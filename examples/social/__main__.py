"""``python -m examples.social``, from the root of the repository."""

from __future__ import annotations

import sys

from shardkit.cli.app import Application

NAME = "examples.social"

if __name__ == "__main__":
    # The application of the command line, for its error messages and exit codes.
    Application(lazy={NAME: "examples.social.command:demo"}).main(
        [NAME, *sys.argv[1:]], "python -m"
    )
