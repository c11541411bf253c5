"""Command line of the baselines: progress on stderr, one JSON document or a table on stdout, bad input exits 2."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .baseline import Baseline, load_baseline
from .errors import BaselineError
from .parity import Bounds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m baselines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    oracle = commands.add_parser("oracle", help="measure acceptance of chain and trees for a pair, without an engine")
    oracle.add_argument("--target", type=Path, required=True)
    oracle.add_argument("--draft", type=Path, required=True)
    oracle.add_argument("--prompts", default="code", help="file, folder, or a name of the project's own sets, or 'all'")
    oracle.add_argument("--limit", type=int, help="only the first N prompts of every set")
    oracle.add_argument("--out", type=Path, help="write the baseline there; unfinished work waits in OUT.partial")
    oracle.add_argument("--budgets", help="comma-separated numbers of nodes")
    oracle.add_argument("--new-tokens", type=int, default=192)
    oracle.add_argument("--top-k", type=int, default=32, help="candidates per position")
    oracle.add_argument("--spine-depth", type=int, default=0)
    oracle.add_argument("--off-spine-penalty", type=float, default=0.0)
    oracle.add_argument("--device", default="cpu")
    oracle.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    oracle.add_argument("--batch", type=int, default=8)
    show = commands.add_parser("show", help="print the summary of a baseline")
    show.add_argument("baseline", type=Path)
    check = commands.add_parser("check", help="compare an engine's trace or verify counts with a baseline")
    check.add_argument("baseline", type=Path)
    check.add_argument("--mode", required=True, help="'chain' or the engine's number of nodes")
    source = check.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="JSON lines of SGLANG_DDTREE_TRACE")
    source.add_argument("--counts", type=Path, help="JSON {prompt id: verify count}")
    check.add_argument(
        "--outputs", type=Path, help="JSON {request id: generated token ids}; with --counts by prompt id"
    )
    check.add_argument("--rids", type=Path, help="JSON {request id: prompt id}, where they differ")
    check.add_argument(
        "--bound", type=float, default=Bounds.target, help="logit margin that is a tie; twice that for a tree's edge"
    )
    check.add_argument("--target", type=Path, help="refuse the baseline unless it was made with this target")
    check.add_argument("--draft", type=Path, help="refuse the baseline unless it was made with this draft")
    check.add_argument(
        "--new-tokens", type=int, help="the engine was asked for this many tokens, fewer than the baseline's"
    )
    identity = commands.add_parser("identity", help="print the hashes by which baselines know a pair")
    identity.add_argument("--target", type=Path, required=True)
    identity.add_argument("--draft", type=Path, required=True)
    take = commands.add_parser("import", help="turn acceptance lists or the official script's results into a baseline")
    take.add_argument("source", type=Path)
    take.add_argument("--out", type=Path, required=True)
    take.add_argument("--mode", default="chain", help="what a file with one list per prompt measured")
    take.add_argument(
        "--target", type=Path, help="record this target's hashes, so that deployments of it find the baseline"
    )
    take.add_argument("--draft", type=Path, help="record this draft's hash")
    for command in (oracle, show, check, identity, take):
        command.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _oracle(args: argparse.Namespace) -> int:
    from .prompts import OWN_SETS, load_prompts
    from .run import DEFAULT_BUDGETS, Request, make_baseline
    from .tree import TreePolicy

    names = sorted(p.stem for p in OWN_SETS.glob("*.jsonl")) if args.prompts == "all" else [args.prompts]
    prompts = [prompt for name in names for prompt in load_prompts(name)[: args.limit]]
    request = Request(
        target=args.target,
        draft=args.draft,
        budgets=_budgets(args.budgets) or DEFAULT_BUDGETS,
        new_tokens=args.new_tokens,
        device=args.device,
        dtype=args.dtype,
        batch=args.batch,
        policy=TreePolicy(args.top_k, args.spine_depth, args.off_spine_penalty),
    )
    partial = args.out.with_name(args.out.name + ".partial") if args.out else None
    baseline = make_baseline(request, prompts, partial)
    if args.out:
        baseline.save(args.out)
        partial.unlink()
    _print_summary(baseline, args.json)
    return 0


def _budgets(text: str | None) -> tuple[int, ...]:
    try:
        budgets = tuple(sorted({int(part) for part in text.split(",")})) if text else ()
    except ValueError:
        budgets = (0,)
    if any(budget < 1 for budget in budgets):
        raise BaselineError(f"--budgets {text} must be whole numbers from 1 up, separated by commas.")
    return budgets


def _print_summary(baseline: Baseline, as_json: bool) -> None:
    summary = baseline.summary()
    if as_json:
        print(json.dumps({"target": baseline.target, "draft": baseline.draft, "summary": summary}))
        return
    rows = {"all": summary["all"], "non-repetitive": summary["non_repetitive"], "repetitive": summary["repetitive"]}
    rows |= summary["by_category"]
    print("tokens per step".ljust(16) + "prompts " + "".join(mode.rjust(7) for mode in baseline.modes))
    for name, row in rows.items():
        cells = "".join(f"{row['tokens_per_step'].get(mode, 0):7.2f}" for mode in baseline.modes)
        print(name.ljust(16) + f"{row['prompts']:7d} " + cells)


def _check(args: argparse.Namespace) -> int:
    from . import parity
    from .baseline import read_json
    from .hashing import model_hash

    baseline = load_baseline(args.baseline)
    baseline.require_models(args.target and model_hash(args.target), args.draft and model_hash(args.draft))
    if args.new_tokens is not None:
        baseline = baseline.shortened(args.new_tokens)
    bounds = Bounds.of(args.bound)

    def table(path: Path | None) -> dict[str, Any]:
        return read_json(path, "give the file that the smoke test wrote") if path else {}

    if args.counts:
        report = parity.check_counts(baseline, table(args.counts), args.mode, bounds, table(args.outputs))
    else:
        report = parity.check_trace(
            baseline, parity.load_trace(args.trace), args.mode, bounds, table(args.outputs), table(args.rids)
        )
    print(json.dumps(report.to_json()) if args.json else report.text())
    return 0 if report.ok else 1


def _import(args: argparse.Namespace) -> int:
    from .imports import import_baseline

    baseline = import_baseline(args.source, args.mode)
    baseline.target |= _identified(args.target)
    baseline.draft |= _identified(args.draft)
    baseline.save(args.out)
    _print_summary(baseline, args.json)
    return 0


def _identified(folder: Path | None) -> dict[str, str]:
    from .hashing import folder_name, model_hash

    return {"name": folder_name(folder), "sha256": model_hash(folder)} if folder else {}


def _identity(args: argparse.Namespace) -> int:
    found = {"target": _identified(args.target), "draft": _identified(args.draft)}
    print(json.dumps(found) if args.json else "\n".join(f"{role} {one['sha256']}" for role, one in found.items()))
    return 0


def _show(args: argparse.Namespace) -> int:
    _print_summary(load_baseline(args.baseline), args.json)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 fine, 1 the engine differs from the baseline, 2 bad input."""
    args = _parser().parse_args(argv)
    commands = {"oracle": _oracle, "show": _show, "check": _check, "identity": _identity, "import": _import}
    try:
        return commands[args.command](args)
    except BaselineError as error:
        if getattr(args, "json", False):
            print(json.dumps({"ok": False, "exit_code": 2, "error": str(error)}))
        print(str(error), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
