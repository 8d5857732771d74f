"""The application: its commands and error handling."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from treadle.cli import (
    api_key,
    bench,
    codegen,
    completion,
    demo,
    doctor,
    enqueue,
    job_output,
    migrate,
    reclaim,
    retention,
    rotate_key,
    schedules,
    serve,
    stats,
    superuser,
    target,
    templates,
    top,
    topics,
    user,
    webhooks,
    worker,
    workers,
)
from treadle.cli.output import be_quiet, complain
from treadle.model.errors import InvalidInput, TreadleError

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130

# The base class of typer's usage errors; typer does not export it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="treadle",
    help="A durable job queue that lives in the database you already have.",
    epilog="Every command can name the queue in your code before its own arguments, as worker does: "
    "treadle jobs list app:queue. The database is --db, or else that queue's own, TREADLE_DB, db in treadle.toml, "
    "or sqlite:///jobs.db.",
    add_completion=False,  # ours takes the shell's name
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.command("enqueue")(enqueue.enqueue)
app.add_typer(job_output.app, name="jobs")
app.add_typer(schedules.app, name="schedules")
app.add_typer(templates.app, name="templates")
app.add_typer(topics.app, name="topics")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(workers.app, name="workers")
app.add_typer(retention.app, name="retention")
app.command("stats")(stats.stats)
app.command("top")(top.top)
app.command("reclaim")(reclaim.reclaim)
app.add_typer(superuser.app, name="superuser")
app.add_typer(user.app, name="user")
app.add_typer(api_key.app, name="api-key")
app.add_typer(codegen.app, name="codegen")
app.command("doctor")(doctor.doctor)
app.command("rotate-key")(rotate_key.rotate_key)
app.command("migrate")(migrate.migrate)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from treadle import __version__

        print(f"treadle {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def treadle(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    install_completion: completion.Install = None,
    show_completion: completion.Show = None,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(BAD_USAGE)


def built() -> Any:
    """The application; the usage of each command shows where the queue of your code stands."""
    whole = typer.main.get_command(app)
    for name, command in getattr(whole, "commands", {}).items():
        if name not in target.WITH_AN_ARGUMENT:
            for one in getattr(command, "commands", {"": command}).values():
                one.options_metavar = "[MODULE:QUEUE] [OPTIONS]"
    return whole


def run(argv: Sequence[str]) -> int:
    """Run one command; an error becomes one line on stderr. `python -X dev -m treadle` shows tracebacks."""
    _open_closed_streams()
    try:
        be_quiet("--json" in argv)
        command = built()
        words = target.take(completion.with_shell(argv), command)
        code = command(words, prog_name="treadle", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _stop_writing()
        return FAILED
    except Exception as error:
        if sys.flags.dev_mode and not isinstance(error, UsageError | TreadleError):
            raise
        code = _explain(error)
        try:
            sys.stdout.flush()
        except OSError:  # often explained already, such as a full disk
            _stop_writing()
        return code


def _explain(error: Exception) -> int:
    if isinstance(error, UsageError):
        message, code = _usage(error), BAD_USAGE
    elif isinstance(error, InvalidInput):
        message, code = error.message, BAD_USAGE
    elif isinstance(error, TreadleError):
        message, code = error.message, FAILED
    else:
        message, code = f"{type(error).__name__}: {error}", FAILED
    complain(message)
    return code


def _usage(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "treadle"
    return f"{message} See {where} --help." if message.endswith((".", "?")) else f"{message}; see {where} --help"


def _open_closed_streams() -> None:
    """A daemon may be started without stdout or stderr (`>&-`); discard what is written to them."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(_nowhere(), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(_nowhere(), "w")


def _stop_writing() -> None:
    """stdout has no reader or can't be written; without this, the interpreter complains when it flushes at exit."""
    os.dup2(_nowhere(), sys.stdout.fileno())


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)
