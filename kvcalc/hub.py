"""A small file, or a small part of a file, from a Hugging Face repository, through huggingface_hub: its cache (for whole files), HF_ENDPOINT, HF_TOKEN
and HF_HUB_OFFLINE count.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import format_bytes


class GatedError(KvcalcError):
    """The repository exists, but its files are shown only to those who accepted its terms."""


def fetch(repo: str, filename: str, revision: str | None, *, max_bytes: int) -> Path | None:
    """The path of the cached file, fetched where it is not cached yet; None where the repository has no such file.

    Of a commit, what the cache knows is final and nothing is asked. Raises GatedError, and KvcalcError for a repository or revision that does not
    exist (exit 3), a file larger than `max_bytes` (exit 3), and a Hub that cannot be reached or does not answer as one (exit 4). No message
    repeats what the Hub or a proxy said.
    """
    found = _located(repo, filename, revision, partial(_download, repo, filename, revision, max_bytes))
    return found if isinstance(found, Path) else None


def locate(repo: str, filename: str, revision: str | None) -> "Path | Located | None":
    """Where a file of any size is: the path of a cached one, else the commit at which `fetch_part` reads it. Nothing is fetched. None where the repository
    has no such file. Raises as fetch does.
    """
    return _located(repo, filename, revision, partial(_locate, repo, filename, revision))


class Located(NamedTuple):
    """A file of a repository at one commit, of that size where the Hub says."""

    commit: str
    file_bytes: int | None


def _located(repo: str, filename: str, revision: str | None, ask: "Callable[[], Path | Located | None]") -> "Path | Located | None":
    """What the cache knows where that is final, else what `ask` finds, else what the cache knows."""
    _quieten()
    from huggingface_hub import constants, errors, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, filename, revision=revision)
    if cached is not None and (constants.is_offline_mode() or _COMMIT.fullmatch(revision or "")):
        return Path(cached) if isinstance(cached, str) else None
    if constants.is_offline_mode():
        raise _offline(repo, filename)
    try:
        return ask()
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise _refused(repo, revision, error) from None
    except KvcalcError:
        raise
    except Exception as error:  # noqa: BLE001 (the HTTP library below huggingface_hub raises types of its own, others with each major version)
        if isinstance(cached, str):
            return Path(cached)
        raise _unreachable(repo, filename, error) from None


def _download(repo: str, filename: str, revision: str | None, max_bytes: int) -> Path | None:
    """Asks for the size first, so that a large file is never downloaded."""
    from huggingface_hub import errors, hf_hub_download

    found = _locate(repo, filename, revision)
    if found is None:
        with suppress(errors.RemoteEntryNotFoundError):
            hf_hub_download(repo, filename, revision=revision, dry_run=True)  # notes the absence in the cache
        return None
    if isinstance(found, Path):
        return found
    if found.file_bytes is not None and found.file_bytes > max_bytes:
        raise KvcalcError(f"{filename} of {repo} is larger than {format_bytes(max_bytes)}: this is no model description")
    return Path(hf_hub_download(repo, filename, revision=revision, library_name="kvcalc", library_version=__version__))


def _locate(repo: str, filename: str, revision: str | None) -> Path | Located | None:
    """Asks once, since huggingface_hub's own look-up retries for minutes."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    try:
        url = hf_hub_url(repo, filename, revision=revision)
        found = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, library_name="kvcalc", library_version=__version__)
    except errors.RemoteEntryNotFoundError:
        return None
    if found.commit_hash is None or found.etag is None:
        hint = "check HF_ENDPOINT, and whether a proxy stands between"
        raise KvcalcError(f"what answers for {filename} of {repo} is not a Hub", hint=hint, code=ExitCode.ENVIRONMENT)
    newest = try_to_load_from_cache(repo, filename, revision=found.commit_hash)
    return Path(newest) if isinstance(newest, str) else Located(found.commit_hash, found.size)


def list_files(repo: str, revision: str | None, ending: str) -> list[str]:
    """The files of a repository whose names end so, sorted; none where that cannot be found out."""
    _quieten()
    from huggingface_hub import HfApi, constants

    if constants.is_offline_mode():
        return []
    try:
        api = HfApi(library_name="kvcalc", library_version=__version__)
        found = api.model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT, expand=["siblings"])
    except Exception:  # noqa: BLE001 (it only helps an error that is raised anyway; types as in fetch)
        return []
    return sorted(file.rfilename for file in found.siblings or () if file.rfilename.endswith(ending))


class Part(NamedTuple):
    """Some bytes of a file, and how many the whole file has (None where the Hub does not say)."""

    data: bytes
    file_bytes: int | None


def fetch_part(repo: str, filename: str, revision: str, *, start: int | None, length: int) -> Part | None:
    """`length` bytes of a file from byte `start` on, for None the last ones; fewer where the file has no more. None where there is no such file.

    Asks once, waits at most about twice HF_HUB_DOWNLOAD_TIMEOUT, keeps nothing in the cache, and reads no further from a server that sends more than
    was asked for. Raises KvcalcError (exit 4) where the Hub cannot be reached, refuses, or does not answer as one.
    """
    _quieten()
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise _offline(repo, filename)
    try:
        return _ask(repo, filename, revision, start, length)
    except KvcalcError:
        raise
    except Exception as error:  # noqa: BLE001 (as in fetch)
        raise _unreachable(repo, filename, error) from None


def _ask(repo: str, filename: str, revision: str, start: int | None, length: int) -> Part | None:
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not in its __all__

    span = f"bytes=-{length}" if start is None else f"bytes={start}-{start + length - 1}"
    # A compressed answer would have other byte positions than the file.
    headers = {**build_hf_headers(library_name="kvcalc", library_version=__version__), "Range": span, "Accept-Encoding": "identity"}
    url, limit_s = hf_hub_url(repo, filename, revision=revision), constants.HF_HUB_DOWNLOAD_TIMEOUT
    deadline = time.monotonic() + limit_s  # the library's own limit is for each read: a server that drips would never reach it
    with get_session().stream("GET", url, headers=headers, timeout=limit_s) as response:
        if response.headers.get("X-Error-Code") == "GatedRepo":
            raise _gated(repo)
        if response.status_code == 404:
            return None
        response.raise_for_status()
        skipped, file_bytes = _place(repo, filename, start, response)
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) >= skipped + length:
                break
            if time.monotonic() > deadline:
                raise _late(repo, filename)
    return Part(bytes(data[skipped : skipped + length]), file_bytes)


def _place(repo: str, filename: str, start: int | None, response: Any) -> tuple[int, int | None]:  # noqa: ANN401 (httpx or httpx2, by huggingface_hub's version)
    """How many bytes of an answer come before those that were asked for, and the size of the whole file where it is told."""
    if response.status_code == 206:
        match = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", response.headers.get("Content-Range", ""), re.ASCII)
        file_bytes = None if match is None or match[3] == "*" else int(match[3])
        if match is not None and (int(match[1]) == start if start is not None else int(match[2]) + 1 == file_bytes):
            return 0, file_bytes
    elif start is not None:  # a server that takes no notice of a range sends the whole file
        length = response.headers.get("Content-Length", "")
        return start, int(length) if re.fullmatch(r"[0-9]{1,19}", length) else None
    raise KvcalcError(f"the Hub does not answer to a range of bytes ({filename} of {repo})", code=ExitCode.ENVIRONMENT)


def _quieten() -> None:
    """Sets up huggingface_hub so that it asks for nothing else and prints nothing. Its telemetry is read from the environment when it is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


_COMMIT = re.compile(r"[0-9a-f]{40}")


def _offline(repo: str, filename: str) -> KvcalcError:
    hint = "unset it, or name a local config.json"
    return KvcalcError(f"{filename} of {repo} is not in the cache, and HF_HUB_OFFLINE is set", hint=hint, code=ExitCode.ENVIRONMENT)


def _gated(repo: str) -> GatedError:
    from huggingface_hub import constants

    hint = f"accept its terms at {constants.ENDPOINT}/{repo}, then set HF_TOKEN"
    return GatedError(f"{repo} is gated", hint=hint, code=ExitCode.ENVIRONMENT)


def _late(repo: str, filename: str) -> KvcalcError:
    return KvcalcError(f"the Hub did not answer in time for {filename} of {repo}", hint=_TRY_AGAIN, code=ExitCode.ENVIRONMENT)


_TRY_AGAIN = "try again, name a preset (`kvcalc models`), or a local config.json"


def _refused(repo: str, revision: str | None, error: Exception) -> KvcalcError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return _gated(repo)
    if isinstance(error, errors.RepositoryNotFoundError):
        return KvcalcError(f"the Hub has no repository {repo}", hint="check the spelling; a private repository needs HF_TOKEN")
    return KvcalcError(f"{repo} has no revision {str(revision)[:60]!r}", hint="leave out --revision for the newest")


def _unreachable(repo: str, filename: str, error: BaseException) -> KvcalcError:
    chain = list(_causes(error))
    status = next((code for each in chain if isinstance(code := getattr(getattr(each, "response", None), "status_code", None), int)), None)
    names = {type(each).__name__ for each in chain}
    hint = _TRY_AGAIN
    if status == 401:
        message, hint = f"the Hub refused the token for {repo}", "check HF_TOKEN"
    elif status == 429:
        message = f"the Hub allows no more requests for now ({filename} of {repo})"
    elif status is not None and status >= 400:
        message = f"the Hub answered {status} for {filename} of {repo}"
    elif any("Timeout" in name for name in names):
        return _late(repo, filename)
    elif any(isinstance(each, PermissionError) for each in chain):
        message, hint = f"the Hub's cache cannot be written for {repo}", "set HF_HOME to a folder that can"
    elif any("Connect" in name or "Proxy" in name for name in names):
        message = f"the Hub cannot be reached for {filename} of {repo}"
    else:
        message = f"{filename} of {repo} did not arrive whole"
    return KvcalcError(message, hint=hint, code=ExitCode.ENVIRONMENT)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it was raised from, outermost first."""
    seen = 0
    while error is not None and seen < 20:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1
