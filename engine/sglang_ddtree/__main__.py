"""``python -m sglang_ddtree {hooks | selftest | bench | compile-matrix | version}``."""

from __future__ import annotations

import argparse
import json
import sys

from . import __version__, compat


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree")
    commands = parser.add_subparsers(dest="command", required=True)
    hooks = commands.add_parser("hooks", help="every upstream function this package touches, and whether it still fits")
    hooks.add_argument("--json", action="store_true", help="one JSON document")
    selftest = commands.add_parser("selftest", help="the ops against independent references on this device")
    selftest.add_argument("--device", default=None, help="cpu or cuda; the default is cuda where there is one")
    selftest.add_argument("--json", metavar="FILE", default=None, help="also write the result there")
    selftest.add_argument("--kernels", metavar="FILE", default=None, help="JSON of the kernel cases (a GPU's part)")
    selftest.add_argument("--workers", type=int, default=4, help="processes that compile and run kernel cases")
    bench = commands.add_parser("bench", help="what the kernels cost on this GPU")
    bench.add_argument("--json", metavar="FILE", default=None, help="also write the result there")
    bench.add_argument("--ops", default="", help="comma-separated ops, such as tree_attention; the default is all")
    compiled = commands.add_parser("compile-matrix", help="every kernel for every GPU architecture, without a GPU")
    compiled.add_argument("--json", action="store_true", help="one JSON document")
    compiled.add_argument("--arch", default="", help="comma-separated, such as 90,120; the default is all")
    compiled.add_argument("--op", default="", help="comma-separated ops; the default is all")
    commands.add_parser("version", help="the version of this package")
    args = parser.parse_args(argv)
    if args.command == "version":
        print(__version__)
        return 0
    if args.command == "selftest":
        return _selftest(args)
    if args.command == "bench":
        from .bench.run import run as run_bench

        return run_bench(args.json, args.ops)
    if args.command == "compile-matrix":
        from .compile_matrix import run as run_matrix

        return run_matrix(args.json, args.arch, args.op)
    return print_hooks(args.json)


def _selftest(args: argparse.Namespace) -> int:
    """The ops of this device, then, where Triton runs, every kernel in every tile configuration."""
    from .selftest import run

    code = run(args.device, args.json)
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return code
    from .selftest_kernels import run as run_kernels

    return run_kernels(device, args.kernels, args.workers) or code


def print_hooks(as_json: bool) -> int:
    """Exit code 0 when every hook fits, 1 when one does not, 2 on an unsupported SGLang."""
    from .hooks import table

    try:
        rows = table()
    except compat.UnsupportedSGLang as error:
        print(error, file=sys.stderr)
        return 2
    ok = all(row["ok"] for row in rows)
    if as_json:
        print(json.dumps({"sglang": compat.installed_version(), "ok": ok, "hooks": rows}, indent=1))
    else:
        print(f"sglang {compat.installed_version()}, sglang_ddtree {__version__}")
        for row in rows:
            print(
                f"{'ok ' if row['ok'] else 'BAD'} {row['kind']:9} {row['target']}\n      {row['detail'] or row['why']}"
            )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
