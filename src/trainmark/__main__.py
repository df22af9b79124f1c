"""Run the program, as ``trainmark`` and as ``python -m trainmark``.

Ctrl-C, SIGTERM and SIGHUP end it with one message and exit code 1 at any moment at which nothing
else heeds them: while it is imported, plans, makes data or prints.
"""

import os
import signal
import sys

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_FAILED = 1  # as in ``errors``, which is not imported yet


class _Stop:
    """The first stop signal, which interrupts what the program does; a second ends it at once."""

    def __init__(self) -> None:
        self._first = ""

    def heed(self) -> None:
        """Handle stop signals, except those that whoever started us ignores, as nohup does."""
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._interrupt)
        sys.unraisablehook = self._unraisable
        sys.excepthook = self._uncaught

    def _interrupt(self, number: int, _frame: object) -> None:
        if self._first:
            self.end()
        self._first = signal.Signals(number).name
        raise KeyboardInterrupt

    def _unraisable(self, lost: "sys.UnraisableHookArgs") -> None:
        """End the program where Python loses the interrupt, as in the locks of its imports."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            self.end()
        sys.__unraisablehook__(lost)

    def _uncaught(self, kind: "type[BaseException]", *rest: object) -> None:
        """End the program where the interrupt meets no handler, as on the last line of ``main``."""
        if issubclass(kind, KeyboardInterrupt):
            self.end()
        sys.__excepthook__(kind, *rest)  # type: ignore[arg-type]

    def end(self) -> None:
        """Say what ended the program, and end it without a word of anybody else."""
        text = "interrupted" if self._first in ("", "SIGINT") else f"stopped by {self._first}"
        self.ignore()
        try:
            os.write(2, f"trainmark: {text}\n".encode())
        finally:
            os._exit(_EXIT_FAILED)

    def ignore(self) -> None:
        """Let no signal change the exit code any more."""
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Run the program."""
    stop = _Stop()
    stop.heed()
    try:
        from trainmark.cli.streams import prepare_streams

        prepare_streams()
        from trainmark.cli.app import main as run

        run()
    except KeyboardInterrupt:
        stop.end()
    finally:
        stop.ignore()


if __name__ == "__main__":
    if sys.version_info < (3, 11) or not sys.flags.safe_path:  # novm
        del sys.path[0]  # the working directory: a json.py there is not ours to import
    main()
