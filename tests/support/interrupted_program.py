"""Run the program and send it a signal at a counted moment.

Run as ``python interrupted_program.py SIGNAL MOMENT WORD…``: the program with these words gets the
signal at its MOMENT-th audited event (imports, files opened, processes started and so on), or not
at all if it has fewer. On the last line of standard error stands how many there were.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the program with an audit hook that counts events and sends a signal at one of them.

    The arguments: the signal's name, the number of the event from 1, and words for the program.
    """
    signal_name, event_number, *words = sys.argv[1:]
    num_events = 0

    def count(*_: object) -> None:
        nonlocal num_events
        num_events += 1
        if num_events == int(event_number):
            os.kill(os.getpid(), signal.Signals[signal_name])

    del sys.path[0]  # the folder of this file, whose modules the program does not have
    from trainmark.__main__ import main as program

    sys.argv = ["trainmark", *words]
    sys.addaudithook(count)
    try:
        program()
    finally:
        os.write(2, f"{num_events} events\n".encode())  # to standard error


if __name__ == "__main__":
    main()
