"""Which command-line options an SGLang package knows, read from its source by AST."""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from typing import Any

from tasks.inspecting import source
from tasks.inspecting.source import SourceTree

SERVER_ARGS = "srt/server_args.py"
FIELDS = "srt/arg_groups/fields/*.py"
REDIRECTS = {
    "DeprecatedAction": "none",
    "DeprecatedStoreTrueAction": "flag",
    "DeprecatedStoreConstAction": "flag",
    "DeprecatedAliasStoreAction": "value",
}


@dataclass(frozen=True)
class Option:
    """One option: its names, how many values it takes, its field, and what replaces it when deprecated.

    takes is `flag` (no value), `value` (one) or `list` (one or more). `stops` marks an option that is still
    known only to end the launch with a message.
    """

    names: tuple[str, ...]
    field: str
    takes: str
    deprecated: bool = False
    replaced_by: str | None = None
    stops: bool = False

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in (None, False)}


def read_options(tree: SourceTree) -> dict[str, Option]:
    """Options by every name they answer to; {} when the source has none of the known shapes."""
    found: dict[str, Option] = {}
    for path in [SERVER_ARGS, *tree.names(FIELDS)]:
        body = source.module(tree, path)
        for option in [*_annotated(body), *_registered(body)]:
            for name in option.names:
                if name not in found or found[name].deprecated:
                    found[name] = option
    return found


def _annotated(body: ast.Module | None) -> list[Option]:
    """Fields `name: A[type, "help"]` or `A[type, Arg(...)]` of records (0.5.13 and newer)."""
    options = []
    for record in (n for n in ast.walk(body) if isinstance(n, ast.ClassDef)) if body else ():
        for item in record.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                option = _from_annotation(item.target.id, item.annotation)
                if option:
                    options.append(option)
    return options


def _from_annotation(field: str, annotation: ast.expr) -> Option | None:
    if not (isinstance(annotation, ast.Subscript) and source.called_name(annotation.value) in ("A", "Annotated")):
        return None
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
    if len(parts) < 2:
        return None
    meta = next((p for p in parts[1:] if isinstance(p, ast.Call) and source.called_name(p) == "Arg"), None)
    given = source.keywords(meta) if meta else {}
    if source.literal(given.get("no_cli")) is True:
        return None
    if meta is None and not any(isinstance(p, ast.Constant | ast.JoinedStr | ast.BinOp) for p in parts[1:]):
        return None
    name = source.literal(given.get("cli_name")) or "--" + field.replace("_", "-")
    aliases = source.literal(given.get("aliases"))
    action_kwargs = given.get("action_kwargs")
    takes = _takes(parts[0], given)
    action = source.called_name(given["action"]) if "action" in given else ""
    replaced = None
    if isinstance(action_kwargs, ast.Dict):
        pairs = zip(action_kwargs.keys, action_kwargs.values, strict=True)
        entries = {str(source.literal(k)): source.literal(v) for k, v in pairs}
        replaced = entries.get("new_flag") or entries.get("error_message")
    return Option(
        names=(str(name), *(map(str, aliases) if isinstance(aliases, list) else ())),
        field=field,
        takes=REDIRECTS.get(action, takes) if action != "DeprecatedAction" else "flag",
        deprecated=action in REDIRECTS,
        replaced_by=str(replaced) if replaced else None,
    )


def _takes(annotation: ast.expr, given: dict[str, ast.expr]) -> str:
    action = source.literal(given.get("action"))
    if action in ("store_true", "store_false", "store_const"):
        return "flag"
    nargs = source.literal(given.get("nargs"))
    if nargs in ("+", "*"):
        return "list"
    if source.called_name(given["action"]) if "action" in given else "":
        return "optional" if nargs == "?" else "value" if nargs is None else "list"
    text = ast.unparse(annotation)
    inner = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text
    if inner == "bool":
        return "flag"
    if inner.startswith(("List[", "list[")) and "type_parser" not in given:
        return "list"
    return "optional" if nargs == "?" else "value"


def _registered(body: ast.Module | None) -> list[Option]:
    """Every `parser.add_argument("--name", …)`."""
    options = []
    for call in source.calls(body, "add_argument"):
        names = tuple(str(n) for n in map(source.literal, call.args) if isinstance(n, str) and n.startswith("-"))
        if not names:
            continue
        given = source.keywords(call)
        action_node = given.get("action")
        action = source.called_name(action_node) if action_node is not None else ""
        new = source.literal(given.get("new_flag")) or source.literal(given.get("error_message"))
        field = source.literal(given.get("dest")) or names[0].lstrip("-").replace("-", "_")
        takes = REDIRECTS.get(action, "") or _takes(given.get("type", ast.Constant(value=None)), given)
        if action == "DeprecatedAction" or (action in REDIRECTS and takes == "none"):
            takes = "flag"
        if action == "DeprecatedAliasStoreAction" and source.literal(given.get("nargs")) in ("+", "*"):
            takes = "list"
        if action == "DeprecatedStoreConstAction" and "choices" in given:
            takes = "value"
        options.append(
            Option(
                names=names,
                field=str(field),
                takes=takes,
                deprecated=action in REDIRECTS,
                replaced_by=str(new) if new else None,
                stops=action == "DeprecatedAction" and "error_message" in given,
            )
        )
    return options
