"""Run the program, as ``trainmark`` and as ``python -m trainmark``.

Ctrl-C, SIGTERM and SIGHUP end it with one message and exit code 1 at any moment at which nothing
else handles them: while it imports modules, plans, makes data or prints.
"""

import os
import signal
import sys

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_FAILED = 1  # as in ``errors``, which is not imported yet


class _StopHandler:
    """Handles stop signals: the first interrupts the program, a second ends it at once."""

    def __init__(self) -> None:
        self._first_signal = ""  # its name; empty: there was none

    def install(self) -> None:
        """Handle stop signals, except those that the parent process ignores, as nohup does."""
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._handle_signal)
        # For interrupts that Python cannot raise, or that nothing catches.
        sys.unraisablehook = self._handle_unraisable
        sys.excepthook = self._handle_uncaught

    def _handle_signal(self, number: int, _frame: object) -> None:
        """Raise KeyboardInterrupt; end the program if this is the second signal."""
        if self._first_signal:
            self.end_program()
        self._first_signal = signal.Signals(number).name
        raise KeyboardInterrupt

    def _handle_unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """End the program if Python cannot raise the interrupt where the signal came.

        This happens in the locks of Python's imports, for example: the error would be lost there.
        Set as ``sys.unraisablehook``.
        """
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.end_program()
        sys.__unraisablehook__(unraisable)  # Python's own

    def _handle_uncaught(
        self, kind: "type[BaseException]", error: BaseException, traceback: object
    ) -> None:
        """End the program if nothing catches the interrupt, as on the last line of ``main``.

        Set as ``sys.excepthook``.
        """
        if issubclass(kind, KeyboardInterrupt):
            self.end_program()
        sys.__excepthook__(kind, error, traceback)  # type: ignore[arg-type]

    def end_program(self) -> None:
        """Print what ended the program, and end it at once, before anything else can print."""
        name = self._first_signal  # empty: a KeyboardInterrupt that this handler did not raise
        text = "interrupted" if name in ("", "SIGINT") else f"stopped by {name}"
        self.ignore_signals()
        try:
            os.write(2, f"trainmark: {text}\n".encode())  # 2: standard error
        finally:
            os._exit(_EXIT_FAILED)

    def ignore_signals(self) -> None:
        """Ignore further signals, so that none changes the exit code."""
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Run the program."""
    handler = _StopHandler()
    handler.install()
    try:
        # Imported here, because a stop signal may come during these imports too.
        from trainmark.cli.streams import prepare_streams

        # Before anything opens a file or prints: a new file would get the descriptor of a closed
        # stream, and prints would go into it.
        prepare_streams()
        from trainmark.cli.app import main as run

        run()
    except KeyboardInterrupt:
        handler.end_program()
    finally:
        handler.ignore_signals()  # else a signal while Python ends would change the exit code


if __name__ == "__main__":
    # `python -m` puts the working directory first on the path; a json.py there must not be imported
    # in place of the standard one. Python 3.11 and later leave it out if asked to (`-P`).
    if sys.version_info < (3, 11) or not sys.flags.safe_path:  # novm
        del sys.path[0]
    main()
