"""The one exception type of kvcalc, its exit codes, and how a message is made safe to show."""

import re
from enum import IntEnum, unique
from typing import Final


@unique
class ExitCode(IntEnum):
    """What a process tells its caller."""

    YES = 0
    """Answered, and the answer is yes."""
    NO = 1
    """Answered, and the answer is no: it does not fit, or a check disagrees."""
    USAGE = 2
    """A word of the command is wrong in itself."""
    UNANSWERABLE = 3
    """The question cannot be answered: unknown model, unreadable file, impossible combination."""
    ENVIRONMENT = 4
    """Something outside is missing: no network, a gated repository, no GPU."""


class KvcalcError(Exception):
    """A question that kvcalc refuses to answer.

    `message` is one line that names the cause, `hint` one line that names the next step (empty where there is none).
    """

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.UNANSWERABLE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


def without_halves(text: str) -> str:
    """Text that may quote what came from outside, safe to encode: a file's name that is no UTF-8 holds halves of characters (lone surrogates)."""
    return text.encode(errors="replace").decode()


def printable(text: str) -> str:
    """Text that may quote what came from outside, safe to print: one line, no control characters, no user name and password of a URL."""
    text = re.sub(r"(?<=://)[^/\s]*@", "***@", text)
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


POINTER: Final = "in a clone, `git lfs pull` fetches it; on the Hub, the repository or its mirror has no more than that"
"""What to do where a Git LFS pointer stands in place of a file."""
