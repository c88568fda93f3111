"""A small file, or a small part of a file, from a Hugging Face repository, through huggingface_hub: its cache (for whole files), HF_ENDPOINT, HF_TOKEN
and HF_HUB_OFFLINE count.

Every question to the Hub has a time limit as a whole, and is asked once: only where the Hub names a short wait is it asked once more.
"""

import logging
import os
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.hub.faults import NO_HUB, TRY_AGAIN, GatedError, asked_wait_s, cut_short, gated, is_late, late, number_in, offline, refused, too_large, unreachable

MAX_WAIT_S: Final = 5
"""The longest wait that the Hub is granted before the same question: whoever waits for an answer would rather know of a longer one than sit through it.
The Hub counts requests over five minutes (huggingface.co/docs/hub/rate-limits), so it may ask for 300 s.
"""
MAX_LIST_BYTES: Final = 8 << 20
"""Of the list of a repository's files: one of ten thousand files takes about 1 MB."""

_Answer = TypeVar("_Answer")
_Content = TypeVar("_Content")


class SmallFile(NamedTuple, Generic[_Content]):
    """What a file holds at one commit, and the folder of the cache for what is known of that commit.

    `instead`: why it is not known whether that is still the newest, empty where it is or need not be.
    """

    content: _Content
    commit: str
    folder: Path
    instead: str = ""


class Located(NamedTuple):
    """A file of a repository at one commit, of that size where the Hub says."""

    commit: str
    file_bytes: int | None


def fetch(repo: str, filename: str, revision: str | None, read: Callable[[bytes], _Content], *, max_bytes: int) -> SmallFile[_Content] | None:
    """A file as it is in the cache or else on the Hub, from where it goes into the cache; None where the repository has no such file.

    Of a commit, what the cache knows is final and nothing is asked. What `read` raises KvcalcError for neither goes into the cache nor is taken from it.
    A cache that cannot be written is done without.

    Raises what `read` does, GatedError, and KvcalcError for a repository or revision that does not exist (exit 3), a file larger than `max_bytes` (exit 3),
    and a Hub that cannot be reached, does not answer as one, or not in time (exit 4).
    """
    _set_up()
    wanted = _Wanted(repo, filename, read, max_bytes)
    held = _cached(repo, filename, revision)
    kept = wanted.kept(held) if isinstance(held, Path) else None
    known = _Known(kept, absent=held is not None and not isinstance(held, Path), damaged=isinstance(held, Path) and kept is None)
    found, instead = _looked_up(repo, filename, revision, known, lambda: wanted.fetched(revision))
    return None if found is None else found._replace(instead=instead)


def locate(repo: str, filename: str, revision: str | None, *, damaged: bool = False) -> Path | Located | None:
    """Where a file of any size is: the path of a cached one, else the commit at which `fetch_part` reads it. Nothing is fetched. None where the repository
    has no such file. `damaged` says that what the cache has is of no use. Raises as fetch does.
    """
    _set_up()

    def ask() -> Path | Located | None:
        found = _locate(repo, filename, revision)
        newest = None if found is None or damaged else _cached(repo, filename, found.commit)
        return newest if isinstance(newest, Path) else found

    held = None if damaged else _cached(repo, filename, revision)
    known = _Known[Path | Located | None](held if isinstance(held, Path) else None, absent=held is not None and not isinstance(held, Path), damaged=damaged)
    return _looked_up(repo, filename, revision, known, ask)[0]


class Part(NamedTuple):
    """Some bytes of a file, and how many the whole file has (None where the Hub does not say)."""

    data: bytes
    file_bytes: int | None


def fetch_part(repo: str, filename: str, revision: str, *, start: int | None, length: int) -> Part | None:
    """`length` bytes of a file from byte `start` on, for None the last ones; fewer where the file has no more. None where there is no such file.

    Waits at most HF_HUB_DOWNLOAD_TIMEOUT, keeps nothing in the cache, and reads no further from a server that sends more than was asked for.
    Raises KvcalcError (exit 4) where the Hub cannot be reached, refuses, or does not answer as one.
    """
    _set_up()
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise offline(repo, filename)
    try:
        return _part(repo, filename, revision, start, length)
    except KvcalcError:
        raise
    except Exception as error:  # noqa: BLE001 (as in _looked_up)
        raise unreachable(repo, filename, error) from None


def list_files(repo: str, revision: str | None, ending: str) -> list[str]:
    """The files of a repository whose names end so, sorted; none where that cannot be found out."""
    _set_up()
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return []
    try:
        found = _asked(repo, "the list of files", "HF_HUB_ETAG_TIMEOUT", partial(_list, repo, revision))
        return sorted(name for file in found["siblings"] if (name := file["rfilename"]).endswith(ending))
    except Exception:  # noqa: BLE001 (it only helps an error that is raised anyway; types as in _looked_up)
        return []


# What the cache knows, and what goes into it


class _Known(NamedTuple, Generic[_Answer]):
    """What the cache knows of a file: what is there, or that there is none, or that what is there is of no use."""

    found: _Answer
    absent: bool
    damaged: bool


def _looked_up(repo: str, filename: str, revision: str | None, known: "_Known[_Answer]", ask: Callable[[], _Answer]) -> tuple[_Answer, str]:
    """What the cache knows where that is final, else what `ask` finds, else what the cache knows, and why that."""
    from huggingface_hub import constants, errors

    if (known.found is not None or known.absent) and (constants.is_offline_mode() or _COMMIT.fullmatch(revision or "")):
        return known.found, ""
    if constants.is_offline_mode():
        raise offline(repo, filename, damaged=known.damaged)
    try:
        return ask(), ""
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise refused(repo, revision, error) from None
    except KvcalcError as error:
        if error.code != ExitCode.ENVIRONMENT or isinstance(error, GatedError):
            raise
        why = error
    except Exception as error:  # noqa: BLE001 (the HTTP library below huggingface_hub raises types of its own, others with each major version)
        why = unreachable(repo, filename, error)
    if known.found is not None:
        return known.found, why.message
    raise why from None


def _cached(repo: str, filename: str, revision: str | None) -> object:
    """The path in the cache; a mark that the repository has no such file; None where the cache does not know."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(repo, filename, revision=revision)
    except (OSError, ValueError):  # a cache that cannot be read, or was not written whole
        return None
    return Path(found) if isinstance(found, str) else found


def _folder(repo: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type="model"))


def _keep(repo: str, name: str, data: bytes, revision: str | None, commit: str) -> None:
    """Puts a file into the cache, and the commit that a revision stands for, so that huggingface_hub finds it (its guide "Understand caching"; files without
    blobs, as where there are no symbolic links). hf_hub_download does not do it, since it waits without a limit for whom it fetches from, for other
    processes, and for its own retries.
    """
    with suppress(OSError):
        _put(_folder(repo) / name, data)
        branch = revision or "main"
        if not _COMMIT.fullmatch(branch) and ".." not in PurePosixPath(branch).parts and not branch.startswith("/"):
            _put(_folder(repo) / "refs" / branch, commit.encode())


def _put(path: Path, data: bytes) -> None:
    """A file that is whole from the moment on that it has its name, whoever else writes or reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.incomplete")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


# What is asked of the Hub


class _Wanted(NamedTuple, Generic[_Content]):
    """A file to fetch, and how its content is read."""

    repo: str
    filename: str
    read: Callable[[bytes], _Content]
    max_bytes: int

    def kept(self, path: Path) -> SmallFile[_Content] | None:
        """What the cache holds; None where that is of no use."""
        with suppress(OSError, KvcalcError), path.open("rb") as file:
            return self._read(file.read(self.max_bytes + 1), path.parent.name, path.parent)
        return None

    def fetched(self, revision: str | None) -> SmallFile[_Content] | None:
        """Asks for the size first, so that a large file is never downloaded."""
        repo, filename = self.repo, self.filename
        found = _locate(repo, filename, revision)
        if found is None:
            return None
        newest = _cached(repo, filename, found.commit)
        if isinstance(newest, Path) and (kept := self.kept(newest)) is not None:
            return kept
        if found.file_bytes is not None and found.file_bytes > self.max_bytes:
            raise too_large(repo, filename, self.max_bytes)
        part = _part(repo, filename, found.commit, 0, self.max_bytes + 1)
        if part is None:
            raise KvcalcError(f"the Hub names {filename} of {repo}, and then has none", hint=TRY_AGAIN, code=ExitCode.ENVIRONMENT)
        if found.file_bytes not in (None, len(part.data)) and len(part.data) <= self.max_bytes:
            raise cut_short(repo, filename, len(part.data), found.file_bytes)
        path = f"snapshots/{found.commit}/{filename}"
        small = self._read(part.data, found.commit, (_folder(repo) / path).parent)
        _keep(repo, path, part.data, revision, found.commit)
        return small

    def _read(self, data: bytes, commit: str, folder: Path) -> SmallFile[_Content]:
        if len(data) > self.max_bytes:
            raise too_large(self.repo, self.filename, self.max_bytes)
        return SmallFile(self.read(data), commit, folder)


def _locate(repo: str, filename: str, revision: str | None) -> Located | None:
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    ask = partial(get_hf_file_metadata, hf_hub_url(repo, filename, revision=revision), library_name="kvcalc", library_version=__version__)
    try:
        found = _asked(repo, filename, "HF_HUB_ETAG_TIMEOUT", lambda limit_s: ask(timeout=limit_s))
    except errors.RemoteEntryNotFoundError as error:
        commit = error.response.headers.get("X-Repo-Commit", "")
        if _COMMIT.fullmatch(commit):
            _keep(repo, f".no_exist/{commit}/{filename}", b"", revision, commit)
        return None
    if found.etag is None or found.commit_hash is None or not _COMMIT.fullmatch(found.commit_hash):
        raise KvcalcError(f"what answers for {filename} of {repo} is not a Hub", hint=NO_HUB, code=ExitCode.ENVIRONMENT)
    return Located(found.commit_hash, found.size)


def _part(repo: str, filename: str, revision: str, start: int | None, length: int) -> Part | None:
    ask = partial(_read_part, repo, filename, revision, start, length)
    return _asked(repo, filename, "HF_HUB_DOWNLOAD_TIMEOUT", lambda limit_s: ask(limit_s=limit_s))


def _read_part(repo: str, filename: str, revision: str, start: int | None, length: int, *, limit_s: float) -> Part | None:
    from huggingface_hub import get_session, hf_hub_url

    span = f"bytes=-{length}" if start is None else f"bytes={start}-{start + length - 1}"
    with get_session().stream("GET", hf_hub_url(repo, filename, revision=revision), headers=_headers(Range=span), timeout=limit_s) as response:
        if response.headers.get("X-Error-Code") == "GatedRepo":
            raise gated(repo)
        if response.status_code == 404:
            return None
        if response.status_code == 416:  # no such bytes: the file is empty, or ends before
            return Part(b"", number_in(r"bytes \*/(\d{1,19})", response.headers.get("Content-Range", "")))
        response.raise_for_status()
        skipped, file_bytes = _place(repo, filename, start, response)
        wanted = length if file_bytes is None else min(length, file_bytes - (start or 0))
        data, broken = _read(response, skipped + wanted, limit_s)
    arrived = data[skipped : skipped + wanted]
    if broken or (file_bytes is not None and len(arrived) < wanted):
        raise cut_short(repo, filename, len(arrived), None if file_bytes is None else wanted)
    return Part(arrived, file_bytes)


def _read(response: Any, enough: int, limit_s: float) -> tuple[bytes, bool]:  # noqa: ANN401 (httpx or httpx2, by huggingface_hub's version)
    """The beginning of a body, with so many bytes or a few more, or all of it; and whether it broke off."""
    data = bytearray()
    deadline = time.monotonic() + limit_s  # nobody waits any more: the thread has to end
    try:
        for chunk in response.iter_raw():
            data += chunk
            if len(data) >= enough:
                break
            if time.monotonic() > deadline:
                raise TimeoutError  # noqa: TRY301 (as those of the HTTP library)
    except Exception as error:
        if is_late(error):
            raise
        return bytes(data), True
    return bytes(data), False


def _place(repo: str, filename: str, start: int | None, response: Any) -> tuple[int, int | None]:  # noqa: ANN401 (as above)
    """How many bytes of an answer come before those that were asked for, and the size of the whole file where it is told."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        raise KvcalcError(f"{filename} of {repo} comes compressed, which was not asked for", hint=NO_HUB, code=ExitCode.ENVIRONMENT)
    if response.status_code == 206:
        match = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", headers.get("Content-Range", ""), re.ASCII)
        file_bytes = None if match is None or match[3] == "*" else int(match[3])
        sent = number_in(r"(\d{1,19})", headers.get("Content-Length", ""))
        if (
            match is not None
            and sent in (None, int(match[2]) + 1 - int(match[1]))
            and (int(match[1]) == start if start is not None else int(match[2]) + 1 == file_bytes)
        ):
            return 0, file_bytes
    elif start is not None:  # a server that takes no notice of a range sends the whole file
        return start, number_in(r"(\d{1,19})", headers.get("Content-Length", ""))
    raise KvcalcError(f"the Hub does not answer to a range of bytes ({filename} of {repo})", hint=NO_HUB, code=ExitCode.ENVIRONMENT)


def _list(repo: str, revision: str | None, limit_s: float) -> Any:  # noqa: ANN401 (whatever the Hub says)
    """huggingface_hub's model_info would read an answer of any length."""
    import json
    from urllib.parse import quote

    from huggingface_hub import constants, get_session

    at = "" if revision is None else f"/revision/{quote(revision, safe='')}"
    url = f"{constants.ENDPOINT}/api/models/{repo}{at}"
    with get_session().stream("GET", url, params={"expand": "siblings"}, headers=_headers(), timeout=limit_s) as response:
        response.raise_for_status()
        return json.loads(_read(response, MAX_LIST_BYTES, limit_s)[0])


def _headers(**more: str) -> dict[str, str]:
    """A compressed answer would have other byte positions than the file, and no bound to what it holds."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not in its __all__

    return {**build_hf_headers(library_name="kvcalc", library_version=__version__), "Accept-Encoding": "identity", **more}


def _asked(repo: str, filename: str, variable: str, ask: Callable[[float], _Answer], *, again: bool = False) -> _Answer:
    """What `ask` answers within the seconds of that variable of huggingface_hub's, once more after a short wait where the Hub asks for one."""
    from huggingface_hub import constants

    limit_s: float = getattr(constants, variable)
    try:
        return _within(limit_s, partial(ask, limit_s))
    except KvcalcError:
        raise
    except Exception as error:
        if is_late(error):
            raise late(repo, filename, variable) from None
        wait_s = asked_wait_s(error)
        if again or wait_s is None or wait_s > MAX_WAIT_S:
            raise
    logging.getLogger(__name__).warning("the Hub asks to wait %d s for %s of %s: waiting", wait_s, filename, repo)
    time.sleep(wait_s)
    return _asked(repo, filename, variable, ask, again=True)


def _within(limit_s: float, ask: Callable[[], _Answer]) -> _Answer:
    """In a thread of its own, which is left alone when the time has passed: the HTTP library's limits are for each read (a server that drips never reaches
    them), and a name server has none.
    """
    future = Future[_Answer]()

    def work() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future.result(limit_s)


def _set_up() -> None:
    """Sets huggingface_hub up so that it asks for nothing else and prints nothing. Its telemetry is read from the environment when it is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub.utils.logging import set_verbosity_error
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ValueError:  # it reads numbers from the environment as it is imported
        hint = "HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT are whole seconds"
        raise KvcalcError("huggingface_hub does not take what an HF_ variable holds", hint=hint, code=ExitCode.ENVIRONMENT) from None
    disable_progress_bars()
    # It repeats what a server says in X-HF-Warning, and with HF_DEBUG the URL with what stands in it.
    set_verbosity_error()  # type: ignore[no-untyped-call]  # it has no annotations


_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
