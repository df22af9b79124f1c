"""What the process of a rank and the process that starts it agree on: variables, signal, files.

Imports nothing heavy.
"""

from __future__ import annotations

import signal

NODE_VARIABLE = "TRAINMARK_NODE"  # description of the node, from the node process
DATA_VARIABLE = "TRAINMARK_DATA"  # folder of the data on this node, if not that of the plan
STACKS_SIGNAL = signal.SIGUSR1  # at which a rank writes the stacks of its threads into its file


def format_stacks_name(rank: int) -> str:
    """Return the name of the file to which the stacks of a rank that hangs are written."""
    return f"stacks.rank{rank}.txt"


def format_log_name(rank: int) -> str:
    """Return the name of the file to which a rank prints."""
    return f"log.rank{rank}.txt"
