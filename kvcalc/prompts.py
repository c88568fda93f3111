"""Files of prompts: the only place that opens them, and the only one that imports a tokenizer.

Nothing that is read stands in a message or an answer: lines are named by their number.
"""

import gzip
import json
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.files import STDIN, opened, path_named, standard_input
from kvcalc.prefix.prompt import NESTED, Prompt, RecordError, from_record, plain
from kvcalc.prefix.sharing import Encode
from kvcalc.results.prefix import Malformed, Reading
from kvcalc.units import format_bytes

MOST_LINE_BYTES: Final = 64 << 20
"""Of one line: many times the longest context. A longer one is counted as malformed."""
MOST_SKIPPED_BYTES: Final = 1 << 28
"""Of one line that is too long: what does not end then has no lines."""
MOST_UNREADABLE: Final = 100_000
"""Lines before the first prompt: a file, or a pipe without end, of which none of so many holds one is none of prompts."""
TRIED_LINES: Final = 16
"""Lines by which the form of a file is told, or fewer that are long."""
TRIED_BYTES: Final = 1 << 20
FORMS: Final = "a JSON object a line with messages, prompt, input or text, an OpenAI batch file, or plain text, a prompt a line"
SHOWN_MALFORMED: Final = 5
GZIP: Final = b"\x1f\x8b"

Form = Literal["jsonl", "text"]


def form_named(text: str) -> Form:
    """Raises KvcalcError (usage) for another."""
    match text:
        case "jsonl" | "text":
            return text
        case _:
            raise KvcalcError(f"--format {text[:40]!r} is neither jsonl nor text", code=ExitCode.USAGE)


class PromptFile:
    """The prompts of a file, or of what is piped in (`-`), which can be read once. `form` is told by its first lines where it is not stated; `strict` stops at
    the first line that holds no prompt. `progress` is told how many bytes of the file were taken, and of how many.
    """

    def __init__(self, name: str, *, form: Form | None, strict: bool, progress: Callable[[int, int], None] | None = None) -> None:
        self.name = "standard input" if name == STDIN else name
        self._path = None if name == STDIN else path_named(name)
        self._strict = strict
        self._progress = progress
        self._form = form
        self._first: Reading | None = None
        if self._path is not None:
            self._check(self._path)
        self.again = self._path is not None and os.path.isfile(self._path)  # noqa: PTH113 (pathlib raises for a name that no file can have)
        """Whether it can be read twice: a pipe cannot, under whatever name."""

    @property
    def reading(self) -> Reading:
        """What the first reading found. Raises KvcalcError where that is not one prompt."""
        found = self._first
        if found is not None and found.prompts:
            return found
        reasons = "; ".join(f"line {each.line}: {each.reason}" for each in ([] if found is None else found.first_malformed))
        raise KvcalcError(
            f"{self.name[:200]} holds no prompt" + (f" ({reasons})" if reasons else ": it is empty"),
            hint=FORMS,
        )

    def read(self) -> Iterator[Prompt]:
        """The prompts, in their order. Raises KvcalcError for a file that cannot be read, and with `strict` for a line that holds no prompt."""
        malformed: list[Malformed] = []
        kinds: Counter[str] = Counter()
        lines = left_out = 0
        for number, line in self._lines():
            if number > MOST_UNREADABLE and not kinds:
                why = f" (line {malformed[0].line}: {malformed[0].reason})" if malformed else ""
                raise KvcalcError(f"none of the first {MOST_UNREADABLE:,} lines of {self.name[:200]} holds a prompt{why}", hint=FORMS)
            if line is not None and not line.strip():
                continue
            lines += 1
            try:
                for prompt in self._prompts(line):
                    kinds[prompt.kind] += 1
                    yield prompt
            except RecordError as error:
                left_out += 1
                if self._strict:
                    raise KvcalcError(
                        f"line {number} of {self.name[:200]} holds no prompt: {error.reason}", hint="without --strict it is counted and left out"
                    ) from None
                if len(malformed) < SHOWN_MALFORMED:
                    malformed.append(Malformed(line=number, reason=error.reason))
        if self._first is None:
            self._first = Reading(
                source=printable(self.name),
                format=self._form or "text",
                lines=lines,
                prompts=kinds.total(),
                kinds=dict(sorted(kinds.items())),
                malformed=left_out,
                first_malformed=tuple(malformed),
            )

    def _prompts(self, line: bytes | None) -> Iterator[Prompt]:
        """Raises RecordError, which tells nothing of the line."""
        if line is None:
            raise RecordError(f"longer than {MOST_LINE_BYTES >> 20} MiB")
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise RecordError("not UTF-8") from None
        if self._form == "text":
            yield plain(text.removesuffix("\n").removesuffix("\r"))
            return
        yield from from_record(_value(text))

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Each line with its number, None in place of one that is too long. The first ones tell the form."""
        with self._opened() as opened:
            numbered = enumerate(_cut(opened), 1)
            ahead: list[tuple[int, bytes | None]] = []
            if self._form is None:
                full = full_bytes = 0
                for number, line in numbered:
                    ahead.append((number, line))
                    if line is None or not line.strip():
                        if number > MOST_UNREADABLE:
                            break
                        continue
                    full += 1
                    full_bytes += len(line)
                    if full == TRIED_LINES or full_bytes > TRIED_BYTES:
                        break
                self._form = _form_of([line.strip() for _, line in ahead if line and line.strip()])
            yield from ahead
            yield from numbered

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """The file, or what is piped in; unpacked where it is gzipped."""
        path = self._path
        with standard_input() if path is None else opened(path, self.name, pipes=True) as file:
            try:
                packed = file.peek(2)[:2] == GZIP
            except OSError as error:
                raise KvcalcError(f"{self.name[:200]} cannot be read: {error.strerror}") from None
            counted = file if path is None or self._progress is None else cast("IO[bytes]", _Counted(file, path.stat().st_size, self._progress))
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=counted)) if packed else counted

    def _check(self, path: Path) -> None:
        """Raises KvcalcError where there is no such file."""
        if os.path.isdir(path):  # noqa: PTH112 (pathlib raises for a name that no file can have)
            raise KvcalcError(f"{self.name[:200]} is a folder", hint="name one file of prompts, or pipe several: cat *.jsonl | kvcalc prefix -")
        if not os.path.exists(path):  # noqa: PTH110 (as above)
            raise KvcalcError(f"there is no file {self.name[:200]}", hint="name a file of prompts, or - for what is piped in")


class _Counted:
    """A file that tells how far it was read."""

    def __init__(self, file: IO[bytes], size: int, progress: Callable[[int, int], None]) -> None:
        self._file, self._size, self._progress, self._done = file, size, progress, 0

    def read(self, size: int = -1) -> bytes:
        return self._told(self._file.read(size))

    def readline(self, size: int = -1) -> bytes:
        return self._told(self._file.readline(size))

    def _told(self, data: bytes) -> bytes:
        self._done += len(data)
        self._progress(self._done, self._size)
        return data


def _cut(file: IO[bytes]) -> Iterator[bytes | None]:
    """Lines, None in place of one that is longer than MOST_LINE_BYTES. Raises KvcalcError where a packed file is damaged."""
    try:
        first = True
        while line := file.readline(MOST_LINE_BYTES + 1):
            if len(line) > MOST_LINE_BYTES:
                skipped = 0
                while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                    skipped += len(rest)
                    if skipped > MOST_SKIPPED_BYTES:
                        raise KvcalcError(f"a line does not end within {format_bytes(MOST_SKIPPED_BYTES)}", hint="a prompt stands on a line of its own")
                yield None
            else:
                yield line.removeprefix(b"\xef\xbb\xbf") if first else line
            first = False
    except (OSError, EOFError, zlib.error) as error:
        raise KvcalcError(f"the file cannot be read to its end: {type(error).__name__}", hint="a packed file may be cut off: gzip -t tests it") from None


def _form_of(lines: Sequence[bytes]) -> Form:
    """JSON where most of the first lines are. Raises KvcalcError for JSON that is not one value a line."""
    if not lines:
        return "text"
    if lines[0] in (b"[", b"{"):
        raise KvcalcError("the file is one JSON value over many lines", hint="write one prompt a line (jq -c '.[]' does), or say --format text")
    told = 0
    for line in lines:
        with suppress(ValueError, RecursionError):
            told += line[:1] in b'{["' and isinstance(json.loads(line), (dict, list, str))
    return "jsonl" if 2 * told >= len(lines) else "text"


def _value(text: str) -> object:
    try:
        return json.loads(text.strip())
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON from character {error.pos + 1} on") from None
    except (ValueError, RecursionError):
        raise RecordError(NESTED) from None


# Tokens


def encode_bytes(texts: Sequence[str]) -> list[bytes]:
    """Each text as its bytes, of which four stand for a token."""
    return [text.encode() for text in texts]


def load_tokenizer(name: str) -> Encode:
    """What turns texts into token ids, by a tokenizer.json or the folder that holds it. Raises KvcalcError where it cannot be loaded."""
    path = path_named(name)
    path = path / "tokenizer.json" if os.path.isdir(path) else path  # noqa: PTH112 (pathlib raises for a name that no file can have)
    if not os.path.isfile(path):  # noqa: PTH113 (as above)
        raise KvcalcError(f"there is no file {str(path)[:200]}", hint="--tokenizer takes a tokenizer.json, or the folder that holds one")
    try:
        library: Any = import_module("tokenizers")  # it is optional, and has no types where it is not installed
    except ImportError:
        raise KvcalcError(
            "the library that reads tokenizer.json is not installed",
            hint="pip install 'kvcalc[tokenizers]', or leave out --tokenizer: 4 bytes then stand for a token",
            code=ExitCode.ENVIRONMENT,
        ) from None
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 (the library raises a bare Exception, whose text quotes the file)
        raise KvcalcError(f"{str(path)[:200]} is not a tokenizer.json", hint="it is the file beside a model's config.json") from None
    tokenizer.no_truncation()  # a tokenizer.json may carry what some training run cut prompts to
    tokenizer.no_padding()

    def encode(texts: Sequence[str]) -> list[bytes]:
        try:
            return [array("I", each.ids).tobytes() for each in tokenizer.encode_batch_fast(list(texts))]
        except Exception:  # noqa: BLE001 (as above; what it says may quote the prompt)
            raise KvcalcError(f"{str(path)[:200]} cannot encode one of the prompts", hint="is it the tokenizer of the model that they are for?") from None

    return encode
