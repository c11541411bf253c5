"""Reads unpacked wheels (never runs them) and rewrites the facts that `make test` uses.

python tests/inspect/collect_facts.py sglang FOLDER    # FOLDER/<version>/sglang, as made by --download
python tests/inspect/collect_facts.py vllm FOLDER
python tests/inspect/collect_facts.py … --download     # fetch and unpack what is missing (large)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tasks.inspecting import versions_table
from tasks.inspecting.flags import TABLE, version_key
from tasks.inspecting.sglang_options import read_options
from tasks.inspecting.source import FolderTree

SGLANG = [
    "0.5.11",
    "0.5.12.post1",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
]
VLLM = ["0.11.2", "0.20.2", "0.33.0"]
FIXTURES = Path(__file__).parent / "fixtures"
DOCS = Path(__file__).parents[2] / "docs" / "versions.md"


def option_spans(folder: Path) -> dict[str, object]:
    """Spans of releases in which each option keeps its meaning."""
    spans: dict[str, list[dict[str, object]]] = {}
    for version in sorted(SGLANG, key=version_key):
        for name, option in sorted(read_options(FolderTree(folder / version / "sglang")).items()):
            facts = {k: v for k, v in option.to_json().items() if k != "names"}
            known = spans.setdefault(name, [])
            previous = {k: v for k, v in known[-1].items() if k not in ("from", "to")} if known else None
            adjacent = known and SGLANG.index(str(known[-1]["to"])) == SGLANG.index(version) - 1
            if previous == facts and adjacent:
                known[-1]["to"] = version
            else:
                known.append({"from": version, "to": version, **facts})
    return {"versions": SGLANG, "options": spans}


def download(package: str, version: str, folder: Path) -> None:
    target = folder / version
    if (target / package).is_dir():
        return
    with tempfile.TemporaryDirectory() as scratch:
        spec = f"{package}=={version}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", scratch]
        subprocess.run([*command, spec], check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            text = (".py", "METADATA", "RECORD", "entry_points.txt")
            wheel.extractall(target, [name for name in wheel.namelist() if name.endswith(text)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=["sglang", "vllm"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--download", action="store_true")
    arguments = parser.parse_args()
    wanted = SGLANG if arguments.package == "sglang" else VLLM
    for version in wanted if arguments.download else ():
        download(arguments.package, version, arguments.folder)
    if arguments.package == "sglang":
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(json.dumps(option_spans(arguments.folder), indent=0, sort_keys=True) + "\n")
    facts = {v: versions_table.read_facts(arguments.package, arguments.folder / v) for v in wanted}
    path = FIXTURES / f"{arguments.package}_versions.json"
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    DOCS.write_text(versions_table.markdown(FIXTURES))
    print(f"{path.name}: {len(facts)} versions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
