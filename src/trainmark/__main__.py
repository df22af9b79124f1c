"""Run the program as ``python -m trainmark``."""

from trainmark.cli.app import main

if __name__ == "__main__":
    main()
