"""Let `python -m dasktune` be the command `dasktune`."""

from dasktune.cli import main

if __name__ == "__main__":
    main()
