"""Run the program, as ``trainmark`` and as ``python -m trainmark``."""

import sys


def main() -> None:
    """Run the program; Ctrl-C while it is still being imported ends it with a word and 1."""
    try:
        from trainmark.cli.app import main as run

        run()
    except KeyboardInterrupt:
        from signal import SIG_IGN, SIGINT, signal

        signal(SIGINT, SIG_IGN)  # once is enough
        print("trainmark: interrupted", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory: a json.py there is not ours to import
    main()
