"""`python -m orchestrator` is `orchestrate`."""

from orchestrator.cli.main import main

if __name__ == "__main__":
    main()
