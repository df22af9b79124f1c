"""Run the program, as ``trainmark`` and as ``python -m trainmark``."""

import _thread
import sys


def main() -> None:
    """Run the program; Ctrl-C while it is still being imported ends it with a word and 1."""
    sys.unraisablehook = _interrupted_again
    try:
        from trainmark.cli.app import main as run

        run()
    except KeyboardInterrupt:
        from signal import SIG_IGN, SIGINT, signal

        signal(SIGINT, SIG_IGN)  # once is enough
        print("trainmark: interrupted", file=sys.stderr)
        sys.exit(1)


def _interrupted_again(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt once more where Python lost Ctrl-C, as in the locks of its imports."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _thread.start_new_thread(_thread.interrupt_main, ())  # within here it would be lost again
    else:
        sys.__unraisablehook__(lost)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory: a json.py there is not ours to import
    main()
