"""What went wrong at the Hub, as an error that says what to do. No message repeats what came from outside: there may be a password in it."""

import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import format_bytes


class GatedError(KvcalcError):
    """The repository exists, but its files are shown only to those who accepted its terms."""


TRY_AGAIN: Final = "try again, name a preset (`kvcalc models`), or a local config.json"
NO_HUB: Final = "check HF_ENDPOINT, and whether a proxy or a login page stands between"


def offline(repo: str, filename: str, *, damaged: bool = False) -> KvcalcError:
    if damaged:
        message, hint = f"the copy of {filename} of {repo} in the cache is damaged, and HF_HUB_OFFLINE is set", "unset it, so that it is fetched again"
    else:
        message, hint = f"{filename} of {repo} is not in the cache, and HF_HUB_OFFLINE is set", "unset it, or name a local config.json"
    return KvcalcError(message, hint=hint, code=ExitCode.ENVIRONMENT)


def too_large(repo: str, filename: str, max_bytes: int) -> KvcalcError:
    return KvcalcError(f"{filename} of {repo} is larger than {format_bytes(max_bytes)}: this is no model description")


def cut_short(repo: str, filename: str, arrived: int, wanted: int | None) -> KvcalcError:
    """`wanted`: the bytes that the Hub announced, None where it announced none."""
    if wanted is None:
        message = f"{filename} of {repo} did not arrive whole: it broke off after {arrived:,} bytes"
    elif arrived < wanted:
        message = f"{filename} of {repo} did not arrive whole: {arrived:,} of {wanted:,} bytes"
    else:
        message = f"{filename} of {repo} has {arrived:,} bytes, where the Hub announced {wanted:,}"
    return KvcalcError(message, hint=TRY_AGAIN, code=ExitCode.ENVIRONMENT)


def gated(repo: str) -> GatedError:
    from huggingface_hub import constants, get_token

    endpoint = re.sub(r"(?<=://)[^/]*@", "", constants.ENDPOINT)  # a password may stand there
    then = "with the account of HF_TOKEN" if get_token() else "then set HF_TOKEN"
    return GatedError(f"{repo} is gated", hint=f"accept its terms at {endpoint}/{repo}, {then}", code=ExitCode.ENVIRONMENT)


def late(repo: str, filename: str, variable: str) -> KvcalcError:
    from huggingface_hub import constants

    message = f"the Hub did not answer in time for {filename} of {repo} ({getattr(constants, variable)} s)"
    return KvcalcError(message, hint=f"try again, or wait longer with {variable} in seconds", code=ExitCode.ENVIRONMENT)


def refused(repo: str, revision: str | None, error: Exception) -> KvcalcError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return gated(repo)
    if isinstance(error, errors.RepositoryNotFoundError):
        return KvcalcError(f"the Hub has no repository {repo}", hint="check the spelling; a private repository needs HF_TOKEN")
    return KvcalcError(f"{repo} has no revision {str(revision)[:60]!r}", hint="leave out --revision for the newest")


def unreachable(repo: str, filename: str, error: Exception) -> KvcalcError:
    chain = list(_causes(error))
    answered = next((each for each in chain if isinstance(getattr(getattr(each, "response", None), "status_code", None), int)), None)
    if isinstance(answered, Exception):
        message, hint = _answered(repo, filename, answered)
    else:
        message, hint = _unanswered(repo, filename, chain)
    return KvcalcError(message, hint=hint, code=ExitCode.ENVIRONMENT)


def _answered(repo: str, filename: str, error: Exception) -> tuple[str, str]:
    """What to say of an answer that refuses, and what to do."""
    from huggingface_hub import get_token

    token = bool(get_token())
    status: int = error.response.status_code  # type: ignore[attr-defined]  # each HTTP library's own type has it
    wait_s = asked_wait_s(error)
    asks = "" if wait_s is None else f", and asks to wait {wait_s} s"
    again = TRY_AGAIN if wait_s is None else f"try again after {wait_s} s"
    match status:
        case 401:
            return (f"the Hub refused the token for {repo}", "check HF_TOKEN") if token else (f"the Hub wants a token for {repo}", "set HF_TOKEN")
        case 403:
            return f"the Hub does not show {filename} of {repo} (403)", "check what HF_TOKEN may read, and whether the repository's page asks to accept terms"
        case 404 | 410:
            return f"what answers for {filename} of {repo} knows no such page ({status})", NO_HUB
        case 407:
            return f"a proxy before the Hub wants a user name and a password ({filename} of {repo})", "set them in HTTPS_PROXY"
        case 429:
            return f"the Hub allows no more requests for now{asks} ({filename} of {repo})", again if token else f"{again}; with HF_TOKEN it allows more"
        case _ if 300 <= status < 400:
            return f"the Hub redirects without end for {filename} of {repo}", NO_HUB
    return f"the Hub answered {status} for {filename} of {repo}{asks}", again


def _unanswered(repo: str, filename: str, chain: list[BaseException]) -> tuple[str, str]:
    """What to say where there was no answer, and what to do."""
    from huggingface_hub import get_token

    names = {type(each).__name__ for each in chain}
    if any(isinstance(each, UnicodeEncodeError) or type(each).__name__ == "LocalProtocolError" for each in chain):
        token = get_token() or ""
        if not (token.isascii() and token.isprintable()):
            return "the token has letters that no HTTP header can hold", "check HF_TOKEN"
    if names & {"UnsupportedProtocol", "InvalidURL"}:
        return "HF_ENDPOINT is no address of a Hub", "write it like https://huggingface.co, or unset it"
    if "TooManyRedirects" in names:
        return f"the Hub redirects without end for {filename} of {repo}", NO_HUB
    if any(isinstance(each, PermissionError) for each in chain):
        return f"a file of huggingface_hub cannot be read for {repo}", "check who may read what is in HF_HOME"
    if any(isinstance(each, ssl.SSLError) for each in chain):
        return (
            f"the Hub's certificate is not accepted, or it does not speak TLS ({filename} of {repo})",
            "check HF_ENDPOINT, and SSL_CERT_FILE behind a company's proxy",
        )
    if "ProxyError" in names:
        return f"the proxy before the Hub does not let through ({filename} of {repo})", "check HTTPS_PROXY"
    if any("Connect" in name for name in names):
        return f"the Hub cannot be reached for {filename} of {repo}", TRY_AGAIN
    return f"what answers for {filename} of {repo} does not speak HTTP, or broke off", NO_HUB


def is_late(error: Exception) -> bool:
    """Whether a time limit has passed: of ours, or one of the HTTP library's."""
    return any("Timeout" in type(each).__name__ for each in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it was raised from, outermost first."""
    seen = 0
    while error is not None and seen < 20:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def asked_wait_s(error: Exception) -> int | None:
    """Seconds that the Hub asks to wait, by its RateLimit header or Retry-After (RFC 9110, 10.2.3); None where it does not."""
    from email.utils import parsedate_to_datetime

    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # documented, but not in its __all__

    response: Any = getattr(error, "response", None)
    if getattr(response, "status_code", None) not in (429, 503):
        return None
    after = response.headers.get("Retry-After", "").strip()
    if (seconds := number_in(r"(\d{1,9})", after)) is not None:
        return seconds
    with suppress(ValueError, OverflowError, TypeError):
        return max(0, round((parsedate_to_datetime(after) - datetime.now(UTC)).total_seconds()))
    limit = parse_ratelimit_headers(response.headers)
    return None if limit is None or limit.remaining else limit.reset_in_seconds


def number_in(pattern: str, text: str) -> int | None:
    match = re.fullmatch(pattern, text, re.ASCII)
    return None if match is None else int(match[1])
