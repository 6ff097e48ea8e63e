"""The entry point, which combines the commands and reports errors in one line."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, NoReturn

import typer

import gigagp
from gigagp.commands.demo import demo
from gigagp.commands.diagnose import diagnose
from gigagp.commands.evaluate import compare, evaluate
from gigagp.commands.fit import fit, plan
from gigagp.commands.forecast import forecast
from gigagp.commands.interrupts import EXIT_INTERRUPTED, interruptible
from gigagp.commands.krige import krige
from gigagp.commands.plot import plot, report
from gigagp.commands.predict import predict
from gigagp.errors import FitInterruptedWarning, GigaGPError, GigaGPWarning
from gigagp.runtime.memory import is_lack_of_memory

#: The exit code for errors that users can correct: a wrong command, an unusable table, a damaged model.
EXIT_WRONG_INPUT = 2
#: The exit code by which shells report a program whose reader has closed the pipe.
EXIT_CLOSED_PIPE = 141
_OUT_OF_MEMORY = "out of memory. Give a lower --memory, or fewer rows with --rows."

app = typer.Typer(
    name="gigagp",
    help="Gaussian processes at scale: fit a table, predict with honest uncertainty.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (fit, plan, compare, predict, evaluate, plot, report, krige, forecast, demo):
    app.command()(interruptible(_command))
app.add_typer(diagnose, name="diagnose")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gigagp {gigagp.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with these arguments, None for those of this process, and exit.

    The code is 0 on success, 2 for a wrong command or unusable input, 130 after Ctrl-C, and 141 if the reader of the
    output has closed the pipe.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell; the next file opened would get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may contain bytes that are not text
    code = 0
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:  # while the commands are set up
        _fail("stopped.")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_CLOSED_PIPE
    except SystemExit as ended:
        # This is what typer and rich raise for a closed pipe.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = EXIT_CLOSED_PIPE
    except OSError as error:  # a full disk behind standard output
        code = code or _fail(f"standard output cannot be written: {error.strerror}.")
    with suppress(OSError):
        sys.stdout.flush()
        sys.exit(code)
    # Otherwise Python would report the error again when it flushes at exit.
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    # This is UsageError, whose module differs between typer's versions.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        with _plain_warnings():
            result = command.main(args=arguments, prog_name="gigagp", standalone_mode=False)
            sys.stdout.flush()
    except usage_error as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return _fail(f"{message.rstrip('.')}{'' if message.endswith('?') else '.'} See gigagp --help.")
    except FitInterruptedWarning as stopped:
        _fail(str(stopped))
        return EXIT_INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        result = EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except GigaGPError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.strerror or error}{'' if error.filename is None else f': {error.filename}'}.")
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        return _fail(_OUT_OF_MEMORY)
    if result == EXIT_INTERRUPTED:  # newer versions of typer return it, older ones raise Abort
        _fail("stopped.")
    return result if isinstance(result, int) else 0


def _fail(message: str) -> int:
    one_line = " ".join(message.split())
    typer.echo(f"gigagp: {one_line}", err=True)
    return EXIT_WRONG_INPUT


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show gigagp's own warnings as one line without their source location, and others as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", GigaGPWarning)
        # Raised once there is a model, so that a command can save it and end.
        warnings.simplefilter("error", FitInterruptedWarning)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: object = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, GigaGPWarning):
                typer.echo(f"gigagp: warning: {' '.join(str(message).split())}", err=True)
            else:
                usual(message, category, filename, lineno, None, line)

        warnings.showwarning = show
        yield
