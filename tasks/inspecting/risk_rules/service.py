"""Rules about the service and the environment that it runs in."""

from __future__ import annotations

from tasks.inspecting.risks import Document, part, rule


@rule(
    "no-service",
    "blocker",
    consequence="there is nothing to clone, to compare with, or to roll back to",
    what_to_do="start the linear service, or run the graph deploy-dflash first",
)
def no_service(d: Document) -> str | None:
    return None if part(d, "kind") == "folder" or part(d, "sglang", "service") else "no SGLang server process was found"


@rule(
    "no-dflash",
    "blocker",
    consequence="DDTree takes its candidates from a DFlash drafter",
    what_to_do="move to an SGLang with DFLASH (0.5.16, 0.5.20 or 0.5.23 are supported)",
)
def no_dflash(d: Document) -> str | None:
    return (
        "the package has no DFLASH algorithm"
        if part(d, "sglang", "dflash") == "none" and part(d, "sglang", "version")
        else None
    )


@rule(
    "not-dflash-now",
    "high",
    consequence="there is no linear DFlash baseline to compare with or to return to",
    what_to_do="run the graph deploy-dflash first; it ends with a recorded linear service",
)
def not_dflash_now(d: Document) -> str | None:
    service = part(d, "sglang", "service")
    algorithm = part(d, "sglang", "service", "algorithm")
    return (
        f"the algorithm in force is {algorithm or 'none'}"
        if service and algorithm not in ("DFLASH", "DDTREE")
        else None
    )


@rule(
    "unsupported-version",
    "blocker",
    consequence="the plug-in refuses to start on a version it was not written for",
    what_to_do="use a supported version for the clone, or wait for a release of the plug-in that names this one",
)
def unsupported_version(d: Document) -> str | None:
    version, known = part(d, "sglang", "version"), part(d, "sglang", "supported_versions") or []
    return (
        f"sglang {version}; the plug-in knows {', '.join(known)}"
        if version and known and version not in known
        else None
    )


@rule(
    "hooks-changed",
    "blocker",
    consequence="an override would not be called, or be called with other arguments",
    what_to_do="do not force it: compare the named function with the plug-in's compat module for this line",
)
def hooks_changed(d: Document) -> str | None:
    bad = [h for h in part(d, "sglang", "hooks") or [] if h["state"] in ("missing", "changed")]
    return (
        f"{len(bad)} of {len(part(d, 'sglang', 'hooks'))} hook points differ, first {bad[0]['target']} ({bad[0]['detail'] or bad[0]['state']})"
        if bad
        else None
    )


@rule(
    "colliding-plugin",
    "high",
    consequence="two plug-ins may override the same worker; the last one loaded wins silently",
    what_to_do="set SGLANG_PLUGINS=sglang_ddtree for the clone, or remove the other plug-in there",
)
def colliding_plugin(d: Document) -> str | None:
    other = part(d, "sglang", "other_plugins") or []
    return ", ".join(f"{p['dist']} {p['version']} ({p['name']})" for p in other) or None


@rule(
    "unused-copies",
    "low",
    consequence="patching or reading the wrong copy changes nothing (and proves nothing)",
    what_to_do="nothing: only the copy that the service imports is cloned",
)
def unused_copies(d: Document) -> str | None:
    copies = part(d, "sglang", "unused_copies") or []
    return f"{len(copies)} other copies, e.g. {copies[0]['path']} ({copies[0]['version']})" if copies else None


@rule(
    "editable-install",
    "medium",
    consequence="a hard-link clone still imports the checkout, so the clone would not be isolated",
    what_to_do="the clone gets a copy of the checkout's package instead of the path entry",
)
def editable(d: Document) -> str | None:
    kind = part(d, "sglang", "package_kind")
    return (
        f"sglang comes from {part(d, 'sglang', 'package_path')} ({kind})"
        if kind in ("editable", "pythonpath", "cwd", "user-site", "script")
        else None
    )


@rule(
    "shadowed-package",
    "medium",
    consequence="another start (other folder, other user) would import another version",
    what_to_do="the release pins PYTHONPATH and PYTHONNOUSERSITE in its environment file",
)
def shadowed(d: Document) -> str | None:
    shadowed = part(d, "sglang", "shadowed") or []
    return f"{part(d, 'sglang', 'package_path')} hides {shadowed[0]}" if shadowed else None


@rule(
    "mapped-conflict",
    "high",
    consequence="it is not certain which copy the process runs",
    what_to_do="restart the service once and inspect again",
)
def mapped_conflict(d: Document) -> str | None:
    conflict = part(d, "sglang", "conflict")
    return str(conflict) if conflict else None


@rule(
    "renamed-flags",
    "medium",
    consequence="the same command line would not start on another version (or warns on this one)",
    what_to_do="the release's unit is written with the new names",
)
def renamed_flags(d: Document) -> str | None:
    found = part(d, "sglang", "flags") or []
    return (
        "; ".join(f"{f['option']} is {f['kind']}" + (f", now {f['became']}" if f["became"] else "") for f in found)
        or None
    )


@rule(
    "unit-not-reloaded",
    "medium",
    consequence="the running service differs from its unit file; a restart would change it",
    what_to_do="run systemctl daemon-reload, restart once and inspect again",
)
def not_reloaded(d: Document) -> str | None:
    return "systemd says NeedDaemonReload=yes" if part(d, "hardware", "system", "unit", "needs_reload") else None


@rule(
    "short-start-timeout",
    "medium",
    consequence="systemd kills the engine while it loads weights and captures graphs",
    what_to_do="the drop-in sets TimeoutStartSec=1800",
)
def short_timeout(d: Document) -> str | None:
    seconds = part(d, "hardware", "system", "unit", "start_timeout_s")
    return f"TimeoutStartSec is {seconds:.0f} s" if isinstance(seconds, int | float) and seconds < 600 else None


@rule(
    "restart-loop",
    "high",
    consequence="a service that restarts by itself voids every measurement",
    what_to_do="read the journal of the unit and mend the cause before deploying",
)
def restarting(d: Document) -> str | None:
    count = part(d, "hardware", "system", "unit", "restarts") or 0
    return f"the unit was restarted {count} times" if count else None
