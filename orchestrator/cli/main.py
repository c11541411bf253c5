"""The entry point: finds the command without importing the others, and turns errors into one sentence and a code."""

from __future__ import annotations

import errno
import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator import __version__
from orchestrator.cli.output import Output
from orchestrator.errors import ExitCode, OrchestrateError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# command -> (module below orchestrator.cli, attribute, one-line help); help is here so that --help imports nothing.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("init", "init", "Write a commented hosts.yaml and an empty state."),
    "doctor": ("doctor", "doctor", "Check this machine and say how to mend each finding."),
    "hosts": ("hosts", "hosts", "List, check, trust and clean hosts."),
    "inspect": ("inspect", "inspect", "Engines and models as they are on a host; changes nothing."),
    "plan": ("plan", "plan", "What a graph would change, and why."),
    "run": ("run", "run", "Run a graph: deploy-ddtree, deploy-dflash, inspect, smoke, bench, rollback."),
    "cancel": ("run", "cancel", "Ask a running graph to stop at the next safe point."),
    "status": ("status", "status", "How a run stands, or what a host serves now."),
    "history": ("status", "history", "Runs so far: who, when, what, how they ended."),
    "explain": ("status", "explain", "Why a task would run again, was skipped, or is blocked."),
    "logs": ("logs", "logs", "Events and log lines of a run or a task."),
    "export": ("logs", "export", "One run as a self-contained folder."),
    "rollback": ("rollback", "rollback", "Back to the last known-good release, proven."),
    "releases": ("rollback", "releases", "Releases on a host: current, known-good, since when."),
    "smoke": ("measure", "smoke", "OpenAI smoke tests against a host or a URL."),
    "bench": ("measure", "bench", "Paired budget sweep with a verdict."),
    "load": ("load", "load", "Latency and throughput of a server under a ladder of loads."),
    "report": ("report", "report", "The report of a run; comparison with another run or imported results."),
    "note": ("todo", "note", "Record a decision, risk or assumption."),
    "todo": ("todo", "todo", "The graph as plain to-dos."),
    "roadmap": ("roadmap", "roadmap", "Regenerate the roadmap from the store."),
    "bundle": ("bundle", "bundle", "Wheels for a host that reaches no registry."),
    "lock": ("lock", "lock", "Who holds a host; steal the lock of a dead run."),
    "tui": ("tui", "tui", "Live view of a run."),
    "mcp": ("mcp", "mcp", "The same for agents, over the Model Context Protocol."),
}


class LazyGroup(click.Group):
    """Knows every command's name and help; imports a command's module only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"orchestrator.cli.{module}"), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text) for name, (_, _, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, _, help_text) in COMMANDS.items()])


def _install_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        from orchestrator.cli.completion import install

        install(cli, shell)
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orchestrate")
@click.option(
    "--install-completion",
    metavar="[SHELL]",
    is_flag=False,
    flag_value="detect",
    expose_value=False,
    is_eager=True,
    type=click.Choice(["detect", "bash", "zsh", "fish"]),
    callback=_install_completion,
    help="Install completion for bash, zsh or fish; default: the shell in use.",
)
def cli() -> None:
    """Bring DDTree speculative decoding to SGLang hosts: inspect, prove, benchmark, deploy, roll back."""


def main(argv: Sequence[str] | None = None) -> None:
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; never raises."""
    json_mode, debug = "--json" in argv, "--debug" in argv
    out = Output(json_mode=json_mode, no_color="--no-color" in argv)
    try:
        result: Any = cli.main(args=argv, prog_name="orchestrate", standalone_mode=False)
        return int(result) if isinstance(result, int) else 0
    except SystemExit as error:  # Click's answer to a shell that asks for completions, and to a reader that went away
        return int(error.code or 0)
    except (Exception, KeyboardInterrupt) as error:
        code, sentence = _judged(error)
        if debug:
            traceback.print_exception(error)
    out.error(sentence)
    out.document(code, {}, sentence)
    return int(code)


def _judged(error: BaseException) -> tuple[ExitCode, str]:
    """Exit code and sentence of an error."""
    match error:
        case OrchestrateError():
            return error.exit_code, str(error)
        case click.exceptions.NoArgsIsHelpError(ctx=click.Context() as context):
            click.echo(context.get_help(), err=True)
            return ExitCode.USAGE, "A command is missing; the list above says what there is."
        case click.ClickException():
            return ExitCode.USAGE, _usage_sentence(error)
        case OSError(strerror=str(problem), errno=errno.ENOSPC | errno.EROFS | errno.EACCES | errno.EDQUOT):
            where = error.filename or "A file could not be written"
            return ExitCode.FAILED_UNCHANGED, f"{where}: {problem}; free space or make it writable, then try again."
        case click.Abort() | KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "Interrupted; `orchestrate status` shows what can be resumed."
    return (
        ExitCode.FAILED_UNCHANGED,
        f"Unexpected {type(error).__name__}: {error} (run again with --debug to see where).",
    )


def _usage_sentence(error: click.ClickException) -> str:
    """Click's message as one sentence: it may have several, and line breaks."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = re.sub(r"\. \(?(Did you|Choose)(.*?)\)?$", lambda found: f" ({found[1].lower()}{found[2]})", message)
    where = getattr(getattr(error, "ctx", None), "command_path", "orchestrate")
    return f"{message}; see `{where} --help`."
