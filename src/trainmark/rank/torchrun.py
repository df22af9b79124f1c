"""Run torchrun, and tell the launcher which ranks failed and how.

Started as ``python -m trainmark.rank.torchrun ARGUMENTS`` with torchrun's own arguments. Its
last line on standard output is a JSON list of the failed ranks: torchrun prints them only in a
table for people, and a rank that was killed tells nothing itself.
"""

from __future__ import annotations

import json
import sys

from trainmark.rank.worker import die_with_parent


def main(arguments: list[str]) -> int:
    """Run the ranks of this node; return 0 if all succeeded."""
    die_with_parent()  # and the ranks with us
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(arguments))
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exit_code": failure.exitcode, "time_s": float(failure.timestamp)}
            for rank, failure in sorted(error.failures.items())
        ]
        print(f"\n{json.dumps(failures)}", flush=True)  # a rank's report may stand before it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
