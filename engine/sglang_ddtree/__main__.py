"""``python -m sglang_ddtree {hooks [--json] | selftest | version}``."""

from __future__ import annotations

import argparse
import json
import sys

from . import __version__, compat


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree")
    commands = parser.add_subparsers(dest="command", required=True)
    hooks = commands.add_parser(
        "hooks", help="every upstream function this package touches, and whether it still fits"
    )
    hooks.add_argument("--json", action="store_true", help="one JSON document")
    selftest = commands.add_parser("selftest", help="the ops against independent references on this device")
    selftest.add_argument(
        "--device", default=None, help="cpu or cuda; the default is cuda where there is one"
    )
    selftest.add_argument("--json", metavar="FILE", default=None, help="also write the result there")
    commands.add_parser("version", help="the version of this package")
    args = parser.parse_args(argv)
    if args.command == "version":
        print(__version__)
        return 0
    if args.command == "selftest":
        from .selftest import run

        return run(args.device, args.json)
    return print_hooks(args.json)


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
