"""Files of prompts: the only place that opens them, and the only one that imports a tokenizer.

Nothing that is read stands in a message or an answer: lines are named by their number.
"""

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.files import MOST_UNREADABLE, STDIN, Progress, opened_lines, path_named, size_of, source_of
from kvcalc.prefix.prompt import NESTED, Prompt, RecordError, from_record, plain
from kvcalc.prefix.sharing import Encode
from kvcalc.results.prefix import Malformed, Reading

MOST_LINE_BYTES: Final = 64 << 20
"""Of one line: many times the longest context. A longer one is counted as malformed."""
TRIED_LINES: Final = 16
"""Lines by which the form of a file is told, or fewer that are long."""
TRIED_BYTES: Final = 1 << 20
FORMS: Final = "a JSON object a line with messages, prompt, input or text, an OpenAI batch file, or plain text, a prompt a line"
SHOWN_MALFORMED: Final = 5

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
    the first line that holds no prompt. `progress` is told how far the file was read.
    """

    def __init__(self, name: str, *, form: Form | None, strict: bool, progress: Progress | None = None) -> None:
        self.name = source_of(name)
        self._file = name
        self._strict = strict
        self._progress = progress
        self._form = form
        self._first: Reading | None = None
        if name != STDIN:
            self._check(path_named(name))
        self.again = size_of(name) is not None
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
        with opened_lines(self._file, MOST_LINE_BYTES, self._progress) as lines:
            numbered = ((number, None if cut else text) for number, text, cut in lines)
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

    def _check(self, path: Path) -> None:
        """Raises KvcalcError where there is no such file."""
        if os.path.isdir(path):  # noqa: PTH112 (pathlib raises for a name that no file can have)
            raise KvcalcError(f"{self.name[:200]} is a folder", hint="name one file of prompts, or pipe several: cat *.jsonl | kvcalc prefix -")
        if not os.path.exists(path):  # noqa: PTH110 (as above)
            raise KvcalcError(f"there is no file {self.name[:200]}", hint="name a file of prompts, or - for what is piped in")


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
