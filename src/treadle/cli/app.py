"""The application: its commands, and what becomes of an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from treadle.cli import api_key, demo, doctor, enqueue, jobs, migrate, serve, stats, superuser, user, worker
from treadle.cli.output import complain
from treadle.errors import InvalidInput, TreadleError

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130

# The base of all that typer raises about wrong arguments; it does not export the name.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="treadle",
    help="A durable job queue that lives in the database you already have.",
    epilog="The database is --db, or else TREADLE_DB, db in treadle.toml, or sqlite:///jobs.db.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.command("enqueue")(enqueue.enqueue)
app.add_typer(jobs.app, name="jobs")
app.command("stats")(stats.stats)
app.add_typer(superuser.app, name="superuser")
app.add_typer(user.app, name="user")
app.add_typer(api_key.app, name="api-key")
app.command("doctor")(doctor.doctor)
app.command("migrate")(migrate.migrate)
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
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(BAD_USAGE)


def run(argv: Sequence[str]) -> int:
    """One command, and one line on stderr for whatever goes wrong. `python -X dev -m treadle` shows traces."""
    _open_closed_streams()
    try:
        code = app(list(argv), prog_name="treadle", standalone_mode=False)
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
        except OSError:  # often what was explained, such as a full disk
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
    """A daemon may be started without stdout or stderr (`>&-`); then nobody wants to read them."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(_nowhere(), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(_nowhere(), "w")


def _stop_writing() -> None:
    """Nobody reads stdout, or it can't be written; the interpreter would complain when it flushes it at the end."""
    os.dup2(_nowhere(), sys.stdout.fileno())


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)
