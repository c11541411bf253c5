"""Remove every trace of the project from this machine: embedded hosts, their services, test hosts."""

from __future__ import annotations

from pathlib import Path

from orchestrator.transport.embedded import remove_embedded

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    for folder in (ROOT, ROOT / ".cache" / "engine"):
        for host in sorted((folder / ".embedded").glob("*")):
            for item in remove_embedded(folder, host.name):
                print(f"removed {item}")
    try:
        from tests.hosts_lab import lab

        lab.remove_all()
    except (ImportError, OSError, PermissionError) as error:
        print(f"test hosts were left alone: {error}")


if __name__ == "__main__":
    main()
