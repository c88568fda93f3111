"""Hubs that misbehave: what a person is told of each, within which time, and what is never told, cached or taken from a cache."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import pytest
from huggingface_hub import constants, try_to_load_from_cache

from kvcalc import catalog
from kvcalc import hub as asking
from kvcalc.catalog import find_checkpoint, load_model
from kvcalc.errors import ExitCode, KvcalcError
from tests.command import Done, kvcalc
from tests.gguf_files import U16, Of, llama, llama_tensors
from tests.gguf_files import file as gguf_file
from tests.loopback import COMMIT, File, Hub, serving

CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 128}
BYTES = 2 * 4 * 128 * 2 * 32 * 2
"""2 (K and V) x 4 layers x 128 tokens x 2 KV heads x 256/8 wide x 2 B."""
BODY = json.dumps(CONFIG).encode()
INDEX = "model.safetensors.index.json"
TOKEN = "hf_" + "secretsecretsecret"
PATIENT_S = 30
"""What the tests set for HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT (10 s each, if nothing is set), so that a busy machine is no fault of a Hub."""
LIMIT_S = 1
"""The same where a Hub is too slow."""
SLACK_S = 2.5
"""How much longer than the limit of one request a case may take on a machine that has other things to do."""
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"
PAGE = b"<!DOCTYPE html><html><title>Sign in</title></html>"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that this process asks: huggingface_hub reads its variables once, when it is imported."""
    with serving() as running:
        use(running.url, tmp_path, monkeypatch)
        yield running


def use(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    wait(PATIENT_S, monkeypatch)
    monkeypatch.setattr(asking, "MAX_WAIT_S", 1)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def wait(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", seconds)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", seconds)


def wait_as_long_as(fault: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not long where the fault is a slow answer."""
    wait(LIMIT_S if fault.delay_s or fault.pause_s else PATIENT_S, monkeypatch)


class Told(NamedTuple):
    """What a person is told, with what to do, and the exit code; None where it is a note beside an answer."""

    text: str
    hint: str
    code: ExitCode | None


def told(question: Callable[[], object]) -> Told:
    """How a question fails, within the time that one request has and one retry."""
    begun = time.monotonic()
    with pytest.raises(KvcalcError) as caught:
        question()
    assert time.monotonic() - begun < 2 * constants.HF_HUB_DOWNLOAD_TIMEOUT + SLACK_S
    return checked(caught.value.message, caught.value.hint, caught.value.code)


def checked(text: str, hint: str, code: ExitCode | None) -> Told:
    assert TOKEN not in text + hint
    assert "\n" not in text + hint
    return Told(text, hint, code)


# What is asked for, and how: a file of each kind and the request that fails


def ask_config(hub: Hub, fault: File) -> Told:
    hub.files["org/model/config.json"] = fault
    return told(lambda: load_model("org/model"))


def ask_config_body(hub: Hub, fault: File) -> Told:
    hub.files["org/model/config.json"] = File(BODY, got=fault)
    return told(lambda: load_model("org/model"))


def ask_gguf(hub: Hub, fault: File) -> Told:
    hub.files["org/model/model.gguf"] = fault
    return told(lambda: load_model("org/model:model.gguf"))


def ask_gguf_body(hub: Hub, fault: File) -> Told:
    hub.files["org/model/model.gguf"] = File(b"GGUF" * 1000, got=fault)
    return told(lambda: load_model("org/model:model.gguf"))


def ask_weights(name: str) -> Callable[[Hub, File], Told]:
    """Weights beside a healthy config.json: whatever fails, there is an answer, and a note."""

    def ask(hub: Hub, fault: File) -> Told:
        hub.add("org/model", {**CONFIG, "quantization_config": {"quant_method": "fp8"}})
        hub.files[f"org/model/{name}"] = fault
        model = load_model("org/model")
        begun = time.monotonic()
        found, notes = find_checkpoint(model)
        assert time.monotonic() - begun < 2 * constants.HF_HUB_DOWNLOAD_TIMEOUT + SLACK_S
        assert found is None
        (note,) = notes
        assert note.code == "checkpoint"
        return checked(note.text, "", None)

    return ask


KINDS: dict[str, tuple[Callable[[Hub, File], Told], str]] = {
    "HEAD of config.json": (ask_config, "config.json of org/model"),
    "GET of config.json": (ask_config_body, "config.json of org/model"),
    "HEAD of a GGUF file": (ask_gguf, "model.gguf of org/model"),
    "GET of a GGUF file": (ask_gguf_body, "model.gguf of org/model"),
    "GET of an index": (ask_weights(INDEX), f"{INDEX} of org/model"),
    "GET of a safetensors header": (ask_weights("model.safetensors"), "model.safetensors of org/model"),
}

# Faults that are told alike whatever is asked for: {file} is its name
EVERYWHERE: dict[str, tuple[dict[str, Any], str, str]] = {
    "never answers": ({"delay_s": 30}, "the Hub did not answer in time for {file} (1 s)", "TIMEOUT in seconds"),
    "401": ({"status": 401}, "the Hub refused the token for org/model", "check HF_TOKEN"),
    "403": ({"status": 403}, "the Hub does not show {file} (403)", "check what HF_TOKEN may read"),
    "403 with a body that says why": (
        {"status": 403, "body": b"Access to model org/model is restricted"},
        "the Hub does not show {file} (403)",
        "whether the repository's page asks to accept terms",
    ),
    "gated": ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "org/model is gated", "/org/model, with the account of HF_TOKEN"),
    "gated, with a body": (
        {"status": 401, "headers": {"X-Error-Code": "GatedRepo"}, "body": f"Access to model org/model is restricted: {TOKEN}".encode()},
        "org/model is gated",
        "/org/model, with the account of HF_TOKEN",
    ),
    "429": ({"status": 429}, "the Hub allows no more requests for now ({file})", "try again"),
    "429, Retry-After": ({"status": 429, "headers": {"Retry-After": "120"}}, "for now, and asks to wait 120 s ({file})", "try again after 120 s"),
    "429, RateLimit": ({"status": 429, "headers": {"RateLimit": '"resolvers";r=0;t=55'}}, "for now, and asks to wait 55 s ({file})", "try again after 55 s"),
    "429, no number": ({"status": 429, "headers": {"Retry-After": "soon"}}, "for now ({file})", "try again"),
    "500": ({"status": 500, "body": TOKEN.encode()}, "the Hub answered 500 for {file}", "try again"),
    "502": ({"status": 502}, "the Hub answered 502 for {file}", "try again"),
    "503, Retry-After": ({"status": 503, "headers": {"Retry-After": "3600"}}, "answered 503 for {file}, and asks to wait 3600 s", "try again after 3600 s"),
    "504": ({"status": 504}, "the Hub answered 504 for {file}", "try again"),
    "407": ({"status": 407}, "a proxy before the Hub wants a user name and a password ({file})", "HTTPS_PROXY"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", EVERYWHERE)
def test_a_fault_is_told_alike_wherever_it_occurs(hub: Hub, fault: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how, said, hint = EVERYWHERE[fault]
    wait_as_long_as(File(**how), monkeypatch)
    ask, file = KINDS[kind]
    answer = ask(hub, File(**how))
    assert said.format(file=file) in answer.text
    if answer.code is not None:
        assert answer.code == ExitCode.ENVIRONMENT
        assert hint in answer.hint


# Faults of one kind of request
LOOP = {"status": 302, "headers": {"Location": f"/org/model/resolve/{COMMIT}/config.json"}}
ALONE: dict[str, tuple[str, dict[str, Any], str, ExitCode | None]] = {
    "no Hub": ("HEAD of config.json", {"body": PAGE, "hub_headers": False}, "what answers for config.json of org/model is not a Hub", ExitCode.ENVIRONMENT),
    "a login page elsewhere": (
        "HEAD of config.json",
        {"status": 302, "headers": {"Location": "http://127.0.0.1:9/login"}, "hub_headers": False},
        "is not a Hub",
        ExitCode.ENVIRONMENT,
    ),
    "a commit that is a path": (
        "HEAD of config.json",
        {"body": BODY, "hub_headers": False, "headers": {"ETag": '"1"', "X-Repo-Commit": "../../../../x"}},
        "is not a Hub",
        ExitCode.ENVIRONMENT,
    ),
    "an empty 404": ("HEAD of config.json", {"status": 404}, "knows no such page (404)", ExitCode.ENVIRONMENT),
    "a file that is gone": ("GET of config.json", {"status": 404}, "the Hub names config.json of org/model, and then has none", ExitCode.ENVIRONMENT),
    "no repository": (
        "HEAD of config.json",
        {"status": 401, "headers": {"X-Error-Code": "RepoNotFound"}},
        "the Hub has no repository org/model",
        ExitCode.UNANSWERABLE,
    ),
    "no revision": ("HEAD of config.json", {"status": 404, "headers": {"X-Error-Code": "RevisionNotFound"}}, "has no revision", ExitCode.UNANSWERABLE),
    "no file": ("HEAD of config.json", {"status": 404, "headers": {"X-Error-Code": "EntryNotFound"}}, "has no config.json", ExitCode.UNANSWERABLE),
    "no GGUF file": ("HEAD of a GGUF file", {"status": 404, "headers": {"X-Error-Code": "EntryNotFound"}}, "has no file model.gguf", ExitCode.UNANSWERABLE),
    "redirects": ("HEAD of config.json", LOOP, "the Hub redirects without end for config.json of org/model", ExitCode.ENVIRONMENT),
    "redirects of the body": ("GET of config.json", LOOP, "the Hub redirects without end for config.json of org/model", ExitCode.ENVIRONMENT),
    "redirects of an index": (
        "GET of an index",
        {"status": 302, "headers": {"Location": f"/org/model/resolve/{COMMIT}/{INDEX}"}},
        f"the Hub redirects without end for {INDEX} of org/model",
        None,
    ),
    "a byte now and then": ("GET of config.json", {"body": BODY, "step": 1, "pause_s": 0.1}, "did not answer in time for config.json", ExitCode.ENVIRONMENT),
    "a byte now and then of GGUF": ("GET of a GGUF file", {"body": b"GGUF" * 9, "step": 1, "pause_s": 0.1}, "did not answer in time", ExitCode.ENVIRONMENT),
    "a byte now and then of weights": ("GET of a safetensors header", {"body": BODY, "step": 1, "pause_s": 0.3}, "did not answer in time", None),
    "stalls": ("GET of config.json", {"body": BODY, "step": 40, "pause_s": 30}, "did not answer in time", ExitCode.ENVIRONMENT),
    "breaks off": ("GET of config.json", {"body": BODY, "cut": 40}, f"did not arrive whole: 40 of {len(BODY)} bytes", ExitCode.ENVIRONMENT),
    "breaks off at once": ("GET of config.json", {"body": BODY, "cut": 0}, f"did not arrive whole: 0 of {len(BODY)} bytes", ExitCode.ENVIRONMENT),
    "breaks off, without ranges": ("GET of config.json", {"body": BODY, "cut": 40, "ranges": False}, f"40 of {len(BODY)} bytes", ExitCode.ENVIRONMENT),
    "breaks off within GGUF": ("GET of a GGUF file", {"body": b"GGUF" * 9, "cut": 8}, "did not arrive whole: 8 of 36 bytes", ExitCode.ENVIRONMENT),
    "breaks off within an index": ("GET of an index", {"body": BODY, "cut": 8}, f"did not arrive whole: 8 of {len(BODY)} bytes", None),
    "breaks off within a header": ("GET of a safetensors header", {"body": BODY, "cut": 3}, "did not arrive whole: 3 of 8 bytes", None),
    "shorter than announced": ("GET of config.json", {"body": BODY[:-9]}, f"did not arrive whole: {len(BODY) - 9} of {len(BODY)} bytes", ExitCode.ENVIRONMENT),
    "longer than announced": ("GET of config.json", {"body": BODY + b" "}, f"{len(BODY) + 1} bytes, where the Hub announced {len(BODY)}", ExitCode.ENVIRONMENT),
    "a length that is not so": ("GET of config.json", {"body": BODY, "length": 5000}, "does not answer to a range of bytes", ExitCode.ENVIRONMENT),
    "another part": (
        "GET of a GGUF file",
        {"status": 206, "body": b"GGUF", "headers": {"Content-Range": "bytes 5-8/100"}},
        "does not answer to a range of bytes",
        ExitCode.ENVIRONMENT,
    ),
    "compressed": ("GET of config.json", {"body": BODY, "headers": {"Content-Encoding": "gzip"}}, "comes compressed", ExitCode.ENVIRONMENT),
    "an empty file": ("HEAD of config.json", {}, "config.json of org/model is not valid JSON", ExitCode.UNANSWERABLE),
    "an empty GGUF file": ("HEAD of a GGUF file", {}, "org/model:model.gguf is no GGUF file", ExitCode.UNANSWERABLE),
    "a page": ("HEAD of config.json", {"body": PAGE}, "config.json of org/model is a web page, not JSON", ExitCode.ENVIRONMENT),
    "a page for GGUF": ("HEAD of a GGUF file", {"body": PAGE}, "org/model:model.gguf is a web page", ExitCode.ENVIRONMENT),
    "a page for an index": ("GET of an index", {"body": PAGE}, f"{INDEX} of org/model is a web page", None),
    "a page for weights": ("GET of a safetensors header", {"body": PAGE}, "model.safetensors of org/model is a web page", None),
    "a pointer": ("HEAD of config.json", {"body": POINTER}, "config.json of org/model is a Git LFS pointer, not the file", ExitCode.UNANSWERABLE),
    "a pointer for GGUF": ("HEAD of a GGUF file", {"body": POINTER}, "model.gguf is a Git LFS pointer, not the file", ExitCode.UNANSWERABLE),
    "a pointer for an index": ("GET of an index", {"body": POINTER}, "is a Git LFS pointer", None),
    "a pointer for weights": ("GET of a safetensors header", {"body": POINTER}, "is a Git LFS pointer", None),
    "too large by its word": ("HEAD of config.json", {"body": BODY, "length": 1 << 40}, "is larger than 8.00 MiB", ExitCode.UNANSWERABLE),
}


@pytest.mark.parametrize("fault", ALONE)
def test_a_fault_of_one_kind_of_request(hub: Hub, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, how, said, code = ALONE[fault]
    wait_as_long_as(File(**how), monkeypatch)
    answer = KINDS[kind][0](hub, File(**how))
    assert said in answer.text
    assert answer.code == code
    assert "config.json" not in kind or not (snapshot(tmp_path) / "config.json").exists()
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_body_that_never_ends_is_read_no_further_than_any_file(hub: Hub) -> None:
    """Neither request says how long it is; httpx would read on."""
    endless = File(b" " * (40 << 20), ranges=False, length=40 << 20)
    hub.files["org/model/config.json"] = File(BODY, length=7 << 20, got=endless)
    assert "is larger than 8.00 MiB" in told(lambda: load_model("org/model")).text
    assert hub.sent_bytes < 24 << 20  # what the buffers between the two take


def test_all_parts_of_a_gguf_file_share_the_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is answered in time, and the whole would take minutes."""
    monkeypatch.setattr(catalog, "_GGUF_S", 1)
    for number in range(1, 9):
        split = {"split.no": Of(U16, number - 1), "split.count": Of(U16, 8)}
        tensors = dict(list(llama_tensors().items())[number - 1 : None if number == 8 else number])
        hub.add("org/model", gguf_file({**llama(), **split} if number == 1 else split, tensors), f"m-{number:05}-of-00008.gguf", delay_s=0.3)
    answer = told(lambda: load_model("org/model:m-00001-of-00008.gguf"))
    assert re.fullmatch(r"the header of org/model:m-0000[2-8]-of-00008.gguf takes too long to read: more than 1 s", answer.text)
    assert answer.code == ExitCode.ENVIRONMENT


# Servers below HTTP


@contextmanager
def talking(say: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that says something to whoever connects."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with suppress(OSError):
                client, _ = listener.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65536)
            say(client, stop)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


def headers_that_drip(client: socket.socket, stop: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not stop.wait(0.05):
        client.sendall(b"y")


def nothing(_client: socket.socket, _stop: threading.Event) -> None:
    """Hangs up."""


def another_protocol(client: socket.socket, _stop: threading.Event) -> None:
    client.sendall(b"220 mail.example ESMTP\r\n")


@pytest.mark.parametrize(
    ("say", "said"), [(headers_that_drip, "did not answer in time"), (nothing, "does not speak HTTP, or broke off"), (another_protocol, "does not speak HTTP")]
)
def test_servers_below_http(say: Callable[[socket.socket, threading.Event], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with talking(say) as url:
        use(url, tmp_path, monkeypatch)
        wait(LIMIT_S, monkeypatch)
        answer = told(lambda: load_model("org/model"))
    assert said in answer.text
    assert answer.code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("huggingface.co", "HF_ENDPOINT is no address of a Hub"),
        ("", "HF_ENDPOINT is no address of a Hub"),
        ("ftp://huggingface.co", "HF_ENDPOINT is no address of a Hub"),
        ("http://127.0.0.1:9", "the Hub cannot be reached"),
    ],
)
def test_an_endpoint_that_is_none(url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(url, tmp_path, monkeypatch)
    answer = told(lambda: load_model("org/model"))
    assert said in answer.text
    assert answer.code == ExitCode.ENVIRONMENT


def test_http_where_tls_is_asked_for(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(hub.url.replace("http:", "https:"), tmp_path, monkeypatch)
    assert "does not speak TLS" in told(lambda: load_model("org/model")).text


# The list of files, which only helps an error


@pytest.mark.parametrize(
    "listing",
    [
        File(delay_s=30),
        File(b'{"siblings": [' + b" " * 5000, step=1, pause_s=0.1),
        File(b"[]", status=500),
        File(PAGE),
        File(b"[" * 100_000),
        File(b'{"siblings": [{"rfilename": 3}]}'),
        File(b'{"siblings": ' + b" " * (40 << 20)),
        File(b"x", status=302, headers={"Location": "/api/models/org/model"}),
    ],
)
def test_a_list_of_files_that_does_not_come(hub: Hub, listing: File, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_as_long_as(listing, monkeypatch)
    hub.add("org/model", b"", "model.gguf")
    hub.listing = replace(listing, hub_headers=False)
    answer = told(lambda: load_model("org/model"))
    assert (answer.text, answer.hint) == ("org/model has no config.json", "a GGUF or adapter repository has none: name the base model")
    assert hub.sent_bytes < 24 << 20


# Waiting and asking again


@pytest.mark.parametrize(("where", "status"), [("HEAD", 429), ("GET", 503)])
def test_a_short_wait_is_granted_once_and_said(hub: Hub, status: int, where: str, caplog: pytest.LogCaptureFixture) -> None:
    busy = File(status=status, headers={"Retry-After": "1"})
    healthy = File(BODY, ranges=False)
    hub.files["org/model/config.json"] = File(BODY, first=[busy]) if where == "HEAD" else File(BODY, got=replace(healthy, first=[]), first=[healthy, busy])
    begun = time.monotonic()
    assert load_model("org/model").config == CONFIG
    assert time.monotonic() - begun >= 1
    assert [record.getMessage() for record in caplog.records if record.name == "kvcalc.hub"] == [
        "the Hub asks to wait 1 s for config.json of org/model: waiting"
    ]


def test_it_is_granted_once(hub: Hub) -> None:
    busy = File(status=429, headers={"Retry-After": "0"})
    answer = ask_config(hub, busy)
    assert "asks to wait 0 s" in answer.text
    assert [method for method, _ in hub.asked] == ["HEAD", "HEAD"]


def test_a_long_wait_is_not(hub: Hub) -> None:
    ask_config(hub, File(status=429, headers={"Retry-After": formatdate(time.time() + 100, usegmt=True)}))
    assert [method for method, _ in hub.asked] == ["HEAD"]


def test_the_wait_until_a_date_is_told(hub: Hub) -> None:
    answer = ask_config(hub, File(status=429, headers={"Retry-After": formatdate(time.time() + 100, usegmt=True)}))
    seconds = re.search(r"asks to wait (\d+) s", answer.text)
    assert seconds is not None
    assert 97 <= int(seconds[1]) <= 101


# Tokens


@pytest.mark.parametrize(
    ("fault", "said", "hint"),
    [
        (File(status=401), "the Hub wants a token for org/model", "set HF_TOKEN"),
        (File(status=403, headers={"X-Error-Code": "GatedRepo"}), "org/model is gated", "/org/model, then set HF_TOKEN"),
        (File(status=429, headers={"Retry-After": "60"}), "asks to wait 60 s", "try again after 60 s; with HF_TOKEN it allows more"),
    ],
)
def test_who_has_no_token_is_told_of_it(hub: Hub, monkeypatch: pytest.MonkeyPatch, fault: File, said: str, hint: str) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/proc/none")
    answer = ask_config(hub, fault)
    assert said in answer.text
    assert answer.hint.endswith(hint)


def test_a_token_in_the_endpoint_is_not_shown(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(hub.url.replace("http://", f"http://user:{TOKEN}@"), tmp_path, monkeypatch)
    hub.add("org/model", b"", status=403, headers={"X-Error-Code": "GatedRepo"})
    assert told(lambda: load_model("org/model")).hint == f"accept its terms at {hub.url}/org/model, with the account of HF_TOKEN"
    hub.add("org/model", CONFIG)
    assert load_model("org/model").source == "Hub org/model"
    assert not [path for path in tmp_path.rglob("*") if TOKEN in str(path) or (path.is_file() and TOKEN.encode() in path.read_bytes())]


def test_a_token_that_no_header_can_hold(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}ä")
    assert ask_config(hub, File(BODY)) == Told("the token has letters that no HTTP header can hold", "check HF_TOKEN", ExitCode.ENVIRONMENT)
    assert hub.asked == []


def asked_by_a_process(url: str, home: Path, *words: str, **env: str) -> Done:
    settings = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_ETAG_TIMEOUT": "10",
        "HF_HUB_DOWNLOAD_TIMEOUT": "10",
        "HF_TOKEN": TOKEN,
    }
    done = kvcalc(*words, env={**settings, **env})
    assert TOKEN not in done.out + done.err
    return done


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "-m", f"https://user:{TOKEN}@huggingface.co/org/model"),
        ("estimate", f"https://user:{TOKEN}@huggingface.co/org/model"),
        ("fit", "-m", "llama-3-8b", "--gpu", f"https://{TOKEN}@x/"),
        ("verify", "--server", f"http://user:{TOKEN}@localhost:1"),
        ("verify", f"http://user:{TOKEN}@localhost:1"),
    ],
)
def test_a_token_in_a_url_that_is_typed_is_not_repeated(words: tuple[str, ...], tmp_path: Path) -> None:
    done = asked_by_a_process("http://127.0.0.1:9", tmp_path, *words)
    assert done.code in {ExitCode.USAGE, ExitCode.UNANSWERABLE}
    assert done.err.startswith("error: ")


def test_a_token_is_in_no_output(hub: Hub, tmp_path: Path) -> None:
    """Not even with the debug output of huggingface_hub, and whatever the server wants to have shown."""
    hub.add("org/model", {**CONFIG, "vocab_size": 1000, "intermediate_size": 512}, headers={"X-HF-Warning": f"topic; {TOKEN} is about to expire"})
    hub.add("org/model", b"", INDEX, status=500)
    done = asked_by_a_process(
        hub.url.replace("http://", f"http://user:{TOKEN}@"),
        tmp_path,
        "fit",
        "--json",
        "-m",
        "org/model",
        "--gpu",
        "h100",
        HF_DEBUG="1",
        HF_HUB_VERBOSITY="debug",
    )
    assert done.json["model"]["source"] == "Hub org/model"
    assert done.err == ""


def test_a_variable_that_huggingface_hub_does_not_take(tmp_path: Path) -> None:
    done = asked_by_a_process("http://127.0.0.1:9", tmp_path, "estimate", "-m", "org/model", HF_HUB_ETAG_TIMEOUT="soon")
    assert (done.code, done.out) == (ExitCode.ENVIRONMENT, "")
    assert "huggingface_hub does not take what an HF_ variable holds" in done.err


# The cache


def snapshot(home: Path) -> Path:
    return home / "hub" / "models--org--model" / "snapshots" / COMMIT


def keep(home: Path, data: bytes, *, linked: bool = True) -> Path:
    """A file in the cache as huggingface_hub puts it there: a link to a blob."""
    folder = snapshot(home)
    folder.mkdir(parents=True, exist_ok=True)
    refs, blobs = folder.parents[1] / "refs", folder.parents[1] / "blobs"
    refs.mkdir(exist_ok=True)
    blobs.mkdir(exist_ok=True)
    (refs / "main").write_text(COMMIT)
    (blobs / "0123").write_bytes(data)
    if linked:
        (folder / "config.json").symlink_to("../../blobs/0123")
    else:
        (folder / "config.json").write_bytes(data)
    return folder / "config.json"


DAMAGED = {"empty": b"", "half": BODY[: len(BODY) // 2], "zeros": bytes(len(BODY)), "a page": PAGE, "a pointer": POINTER, "too large": b" " * (9 << 20)}


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_in_the_cache_is_fetched_again_and_offline_refused(
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    linked: bool,  # noqa: FBT001
) -> None:
    path = keep(tmp_path, DAMAGED[case], linked=linked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in (None, COMMIT):
        answer = told(lambda revision=revision: load_model("org/model", revision))  # type: ignore[misc]  # the default binds it
        assert answer.text == "the copy of config.json of org/model in the cache is damaged, and HF_HUB_OFFLINE is set"
        assert answer.code == ExitCode.ENVIRONMENT
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.add("org/model", b"", status=503)
    assert "answered 503" in told(lambda: load_model("org/model")).text
    hub.add("org/model", CONFIG)
    assert load_model("org/model").config == CONFIG
    assert path.read_bytes() == BODY
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_model("org/model").config == CONFIG


def test_what_a_branch_stands_for_may_be_half_written(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, BODY)
    hub.add("org/model", CONFIG)
    main = snapshot(tmp_path).parents[1] / "refs" / "main"
    for half in (b"", COMMIT[:17].encode(), b"\xff\xfe", b"../../../../etc"):
        main.write_bytes(half)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "is not in the cache, and HF_HUB_OFFLINE is set" in told(lambda: load_model("org/model")).text
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert load_model("org/model").config == CONFIG


def test_a_damaged_gguf_file_in_the_cache_is_read_on_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gguf_file(llama(), llama_tensors())
    keep(tmp_path, BODY)
    (snapshot(tmp_path) / "model.gguf").write_bytes(whole[:-100])
    hub.add("org/model", whole, "model.gguf")
    assert load_model("org/model:model.gguf").source == f"org/model:model.gguf at {COMMIT[:7]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "model.gguf is cut short" in told(lambda: load_model("org/model:model.gguf")).text
    (snapshot(tmp_path) / "model.gguf").write_bytes(whole)
    assert load_model("org/model:model.gguf").source == "org/model:model.gguf in the Hub's cache"


def test_damaged_weights_in_the_cache_are_looked_up_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    keep(tmp_path, BODY)
    hub.add("org/model", CONFIG)
    hub.add("org/model", {"metadata": {"total_size": 1234}, "weight_map": {"a": "b.safetensors"}}, INDEX)
    (snapshot(tmp_path) / INDEX).write_bytes(b'{"metadata": {"total_s')
    found, notes = find_checkpoint(load_model("org/model"))
    assert found is not None
    assert (found.size_bytes, notes) == (1234, ())


def test_an_answer_from_the_cache_says_that_the_hub_could_not_be_asked(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, BODY)
    hub.add("org/model", b"", status=503)
    model = load_model("org/model")
    assert model.config == CONFIG
    assert [note.text for note in model.spec.notes if note.code == "cached"] == [
        f"answered from the Hub's cache, as org/model was at commit {COMMIT[:7]}: the Hub answered 503 for config.json of org/model"
    ]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cached" not in {note.code for note in load_model("org/model").spec.notes}


def test_what_goes_into_the_cache_is_found_there_by_huggingface_hub(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    load_model("org/model")
    path = snapshot(tmp_path) / "config.json"
    assert try_to_load_from_cache("org/model", "config.json") == str(path)
    assert path.read_bytes() == BODY
    assert try_to_load_from_cache("org/model", "hf_quant_config.json") is huggingface_hub._CACHED_NO_EXIST  # noqa: SLF001 (documented under this name)
    scanned = huggingface_hub.scan_cache_dir(tmp_path / "hub")
    assert [repo.repo_id for repo in scanned.repos] == ["org/model"]
    assert not scanned.warnings
    hub.asked.clear()
    assert huggingface_hub.hf_hub_download("org/model", "config.json", revision=COMMIT) == str(path)
    assert hub.asked == []


@pytest.mark.parametrize("way", ["the home is a link", "the repository is a link", "the blob is a link to nowhere"])
def test_caches_of_links(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    real, home = tmp_path / "real", tmp_path / "home"
    if way == "the home is a link":
        real.mkdir()
        home.symlink_to(real)
    elif way == "the repository is a link":
        real.mkdir()
        (home / "hub").mkdir(parents=True)
        (home / "hub" / "models--org--model").symlink_to(real)
    else:
        keep(home, BODY)
        (home / "hub" / "models--org--model" / "blobs" / "0123").unlink()
    use(hub.url, home, monkeypatch)
    hub.add("org/model", CONFIG)
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert load_model("org/model").config == CONFIG


# A cache that cannot be written or read, and processes that share one


def quiet(hub: Hub, home: Path, *words: str, **env: str) -> Done:
    return asked_by_a_process(hub.url, home, "estimate", "--quiet", "-m", "org/model", *words, **env)


def test_a_home_that_cannot_be_made_is_done_without(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        assert quiet(hub, home) == Done(0, f"{BYTES}\n", "")
        assert "is not in the cache, and HF_HUB_OFFLINE is set" in quiet(hub, home, HF_HUB_OFFLINE="1").err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_home_that_is_read_only_is_done_without(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    tmp_path.chmod(0o500)
    assert quiet(hub, tmp_path) == Done(0, f"{BYTES}\n", "")


def test_a_full_disk_leaves_nothing_behind(hub: Hub, tmp_path: Path) -> None:
    """A limit of no bytes for any file fails as a full disk does: in the middle of writing."""
    hub.add("org/model", CONFIG)
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-m", "kvcalc", "estimate", "--quiet", "-m", "org/model"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{BYTES}\n", "")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != COMMIT]
    assert quiet(hub, tmp_path, HF_HUB_OFFLINE="1").code == ExitCode.ENVIRONMENT
    assert quiet(hub, tmp_path).out == f"{BYTES}\n"


@pytest.mark.parametrize("count", [2, 4])
def test_processes_at_once_on_an_empty_cache_answer_alike(hub: Hub, tmp_path: Path, count: int) -> None:
    hub.add("org/model", CONFIG, pause_s=0.2, step=50)  # slow enough for all to be under way together
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: quiet(hub, tmp_path), range(count)))
    assert answers == [Done(0, f"{BYTES}\n", "")] * count
    assert (snapshot(tmp_path) / "config.json").read_bytes() == BODY
    assert not list(tmp_path.rglob("*.incomplete"))
    assert quiet(hub, tmp_path, HF_HUB_OFFLINE="1").out == f"{BYTES}\n"


def test_a_process_that_is_killed_in_the_middle_leaves_nothing_that_counts(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/model/config.json"] = File(BODY, got=File(BODY, step=40, pause_s=30))
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "30"}
    with subprocess.Popen([sys.executable, "-m", "kvcalc", "estimate", "-m", "org/model"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while hub.sent_bytes < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert hub.sent_bytes == 40
    assert "is not in the cache" in quiet(hub, tmp_path, HF_HUB_OFFLINE="1").err
    hub.add("org/model", CONFIG)
    assert quiet(hub, tmp_path).out == f"{BYTES}\n"
    assert quiet(hub, tmp_path, HF_HUB_OFFLINE="1").out == f"{BYTES}\n"


def test_a_draft_of_a_killed_process_does_not_count(hub: Hub, tmp_path: Path) -> None:
    """Killed between writing and naming: the draft stays, and is no file of the snapshot."""
    folder = snapshot(tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json.0123.incomplete").write_bytes(BODY[:40])
    hub.add("org/model", CONFIG)
    assert "is not in the cache" in quiet(hub, tmp_path, HF_HUB_OFFLINE="1").err
    assert quiet(hub, tmp_path).out == f"{BYTES}\n"


def test_a_process_ends_when_the_time_has_passed_though_a_request_is_under_way(tmp_path: Path) -> None:
    with talking(headers_that_drip) as url:
        begun = time.monotonic()
        done = asked_by_a_process(url, tmp_path, "estimate", "-m", "org/model", HF_HUB_ETAG_TIMEOUT="1")
        assert time.monotonic() - begun < 1 + 2 * SLACK_S
    assert (done.code, done.out) == (ExitCode.ENVIRONMENT, "")
    assert (
        done.err
        == "error: the Hub did not answer in time for config.json of org/model (1 s)\nhint: try again, or wait longer with HF_HUB_ETAG_TIMEOUT in seconds\n"
    )
