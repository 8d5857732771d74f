"""What is raised where a program's own code is called: whose it is, and how to show it."""

from __future__ import annotations

import asyncio.runners
import dis
import traceback

from treadle.model.error_line import error_line

MAX_CHARACTERS = 500


def is_ctrl_c(error: BaseException) -> bool:
    """Whether a signal raised it, which is meant for the program: a `raise` in a handler ends the job."""
    frames = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or frames is None:
        return False
    while frames.tb_next:
        frames = frames.tb_next
    code = frames.tb_frame.f_code
    raises = dis.opname[code.co_code[frames.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return not raises or code.co_filename == asyncio.runners.__file__


def not_ctrl_c(error: BaseException) -> BaseException:
    """The error, unless it is for the program: then it goes on its way."""
    if is_ctrl_c(error):
        raise error
    return error


def one_line(error: BaseException) -> str:
    """Its type and text; the text of an exception may raise, too."""
    try:
        text = error_line("".join(traceback.format_exception_only(error)), type(error).__qualname__)
    except BaseException as worse:
        not_ctrl_c(worse)
        text = type(error).__qualname__
    return text[:MAX_CHARACTERS].replace("\x00", "").encode(errors="backslashreplace").decode()
