"""Run ``torch.distributed.run`` and print how the ranks ended as one JSON line.

The elastic agent knows each failed rank's exit code and last words; its own program only
logs them. Started by the launcher, with the arguments of ``torch.distributed.run``.
"""

from __future__ import annotations

import json
import sys


def main(arguments: list[str]) -> int:
    """Run the agent; return 1 when a rank failed."""
    from trainmark.measure.worker import die_with_parent

    die_with_parent()  # ranks die with this process, so none outlives a killed launcher
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    failures = []
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            said = failure.message
            # A rank of ours leaves its report as JSON text; a rank killed leaves nothing.
            report = json.loads(said["message"]) if isinstance(said, dict) else None
            failures.append(
                {
                    "rank": rank,
                    "exit_code": failure.exitcode,
                    "time_s": failure.timestamp,
                    "report": report,
                }
            )
    print(json.dumps({"failures": failures}), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
