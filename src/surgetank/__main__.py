"""`python -m surgetank` is the `surgetank` command."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 and the number of SIGINT, as shells count


def main() -> None:
    """Run the command line; Ctrl-C ends it quietly, even while it is still being loaded."""
    try:
        from surgetank.cli import main as command_line  # noqa: PLC0415 - loading takes half a second

        command_line()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
