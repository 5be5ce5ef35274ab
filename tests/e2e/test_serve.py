"""`augury serve` as a process: how it ends, and what its neighbours in the terminal have of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import grpc
import httpx
import openai
import pytest

from augury.v1 import kvcache_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub

NUM_STREAMS = 4
NUM_TOKENS = 450
KEY = "sk-test"
STOP_SECONDS = 30


class Serve:
    """A server that is ready, its address and what it has printed."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        settings = ["kvcache.address=127.0.0.1:0", "kv.num_blocks=400", "worker.threads=1", "model.dtype=float32"]
        arguments = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "deploy.cli", "serve", "--model", str(folder), "--port", "0", *arguments]
        self.popen = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.output: list[str] = []
        self._printed = Event()
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.output.append(line)
            self._printed.set()

    def line(self, start: str) -> str:
        """The first line that begins so, once it is there."""
        deadline = time.monotonic() + 60
        while True:
            self._printed.clear()
            if found := [line.strip() for line in [*self.output] if line.strip().startswith(start)]:
                return found[0]
            assert time.monotonic() < deadline and self.popen.poll() is None, "".join(self.output)
            self._printed.wait(1)

    @property
    def url(self) -> str:
        return self.line("Augury serves").split(" at ")[1].split("/v1")[0]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=60)

    def begin(self, pool: ThreadPoolExecutor) -> list[Future[str]]:
        """Streams of which each has brought something."""
        client, begun = self.client(), [Event() for _ in range(NUM_STREAMS)]
        texts = [pool.submit(text, client, seed, begun[seed]) for seed in range(NUM_STREAMS)]
        assert all(event.wait(30) for event in begun)
        return texts


@contextmanager
def served(folder: Path, *options: str, **environment: str) -> Iterator[Serve]:
    server = Serve(folder, *options, **environment)
    try:
        yield server
    finally:
        server.popen.kill()
        server.popen.wait()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The option that lets nobody in without KEY."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"{KEY}\n")
    return f"gateway.api_keys_file={file}"


@pytest.fixture(scope="module")
def locked(tiny_model: Path, keys: str) -> Iterator[Serve]:
    """A server that wants an API key, and greets with it."""
    with served(tiny_model, "--greet", "--set", keys, OPENAI_API_KEY=KEY) as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        yield pool


def text(client: openai.OpenAI, seed: int, begun: Event) -> str:
    """The whole of a stream that never ends early."""
    stream = client.completions.create(
        model="tiny",
        prompt=f"the story {seed} of",
        seed=seed,
        max_tokens=NUM_TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = []
    for chunk in stream:
        pieces.append(chunk.choices[0].text)
        begun.set()
    assert chunk.choices[0].finish_reason == "length"
    return "".join(pieces)


def test_sigterm_lets_streams_end_and_refuses_others(tiny_model: Path, pool: ThreadPoolExecutor) -> None:
    with served(tiny_model) as server:
        undisturbed = [stream.result() for stream in server.begin(pool)]
        streams = server.begin(pool)
        server.popen.send_signal(signal.SIGTERM)
        while (ready := httpx.get(f"{server.url}/health/ready")).is_success:
            time.sleep(0.005)
        live = httpx.get(f"{server.url}/health/live")
        refused = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "a"})
        assert not any(stream.done() for stream in streams), "the streams ended too early to show anything"
        assert (ready.status_code, live.status_code, refused.status_code) == (503, 200, 503)
        assert int(refused.headers["retry-after"]) > 0
        assert [stream.result() for stream in streams] == undisturbed
        assert server.popen.wait(STOP_SECONDS) == 0


def test_streams_that_outlast_the_drain_are_told_so(tiny_model: Path, pool: ThreadPoolExecutor) -> None:
    with served(tiny_model, "--set", "gateway.drain_seconds=0.1") as server:
        streams = server.begin(pool)
        server.popen.send_signal(signal.SIGTERM)
        for stream in streams:
            with pytest.raises(openai.APIError, match="shutting down"):
                stream.result()
        assert server.popen.wait(STOP_SECONDS) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tiny_model: Path, pool: ThreadPoolExecutor, second: signal.Signals) -> None:
    with served(tiny_model) as server:
        streams = server.begin(pool)
        server.popen.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/health/ready").is_success:
            time.sleep(0.005)
        server.popen.send_signal(second)
        assert server.popen.wait(STOP_SECONDS) == -second
        assert all(stream.exception() is not None for stream in streams)


def test_a_signal_while_the_model_loads_ends_it(tiny_model: Path) -> None:
    with served(tiny_model) as server:
        server.line("Loading")
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(STOP_SECONDS) == 0


def test_an_idle_server_stops_at_once(tiny_model: Path) -> None:
    with served(tiny_model) as server:
        httpx.get(f"{server.url}/health/ready").raise_for_status()
        server.popen.send_signal(signal.SIGINT)
        assert server.popen.wait(STOP_SECONDS) == 0


def augury(*arguments: str, said: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments],
        input=said,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": "", **environment},
        timeout=60,
        check=False,
    )


def test_it_greets_with_the_key_and_shows_where_one_goes(locked: Serve) -> None:
    assert '-H "Authorization: Bearer $OPENAI_API_KEY"' in locked.line("curl")
    locked.line("> Say hello")
    assert locked.line("(").endswith(" s)")


def test_chat_needs_the_key_that_the_server_wants(locked: Serve) -> None:
    chat = ("chat", "--url", locked.url, "--temperature", "0")
    refused = augury(*chat, said="hello\n")
    assert refused.returncode == 1
    assert refused.stderr.startswith("augury chat: a valid API key is needed") and refused.stderr.count("\n") == 1
    by_variable = augury(*chat, said="hello\n", OPENAI_API_KEY=KEY)
    by_option = augury(*chat, "--api-key", KEY, said="hello\n", OPENAI_API_KEY="another")
    assert (by_variable.returncode, by_option.returncode) == (0, 0)
    assert len(by_option.stdout) > 20 and by_option.stdout == by_variable.stdout


def test_its_kv_cache_can_be_inspected(locked: Serve) -> None:
    locked.line("(")
    address = locked.line("augury kv inspect").split()[-1]
    shown = augury("kv", "inspect", "--address", address)
    assert shown.returncode == 0 and "worker-0" in shown.stdout
    refused = augury("kv", "inspect", "--address", address, "--prefixes", "99999")
    assert refused.returncode == 1 and "internal" not in refused.stderr and refused.stderr.count("\n") == 1
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        KVCacheStub(channel).ClosePool(kvcache_pb2.ClosePoolRequest(pool="worker-0"), timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_another_server_goes_without_an_address_that_is_taken_or_a_key_that_it_lacks(
    tiny_model: Path, locked: Serve, keys: str
) -> None:
    taken = locked.line("augury kv inspect").split()[-1]
    options = ["--greet", "--set", keys, "--set", f"kvcache.address={taken}"]
    with served(tiny_model, *options, OPENAI_API_KEY="") as server:
        server.line("Nobody is greeted")
        assert httpx.get(f"{server.url}/health/ready").is_success
        assert not any("kv inspect" in line for line in server.output)
