"""Registry of checks, the clients that they use, and assertions that show both sides."""

import array
import dataclasses
import pathlib
import struct
import time

import httpx2
import openai

CHECKS = []
LIMIT_S = 120.0


# Fields of `Context` without which the checks with these prefixes are skipped.
NEEDS = {
    "audio.": ["audio_model"],
    "live.": ["audio_model"],
    "live.wyoming": ["wyoming"],
    "live_figures.": ["audio_model", "corpus"],
    "live_figures.wyoming": ["wyoming"],
    "tools.": ["scripted_model"],
    "responses.": ["scripted_model"],
    "agents.": ["scripted_model"],
    "voice.": ["audio_model"],
    "voice.livekit_chats": ["scripted_model"],
    "mcp_client.": ["stonechat", "audio_model"],
    "lm_eval_client.": ["stonechat"],
}


def check(function):
    """Registers a check; its name is that of the function after the name of its module."""
    name = f"{function.__module__}.{function.__name__}"
    needs = [need for prefix, all in NEEDS.items() if name.startswith(prefix) for need in all]
    CHECKS.append((name, function, needs))
    return function


@dataclasses.dataclass(eq=False)
class Context:
    """Server under test."""

    base: str
    key: str
    model: str
    audio_model: str | None
    audio: pathlib.Path
    scripted_model: str | None
    wyoming: str | None
    stonechat: str | None
    corpus: pathlib.Path | None

    def __post_init__(self):
        self.client = self.openai(self.key)
        self.http = self.plain({"Authorization": f"Bearer {self.key}"})
        self.query = {"model": self.model}
        self.asynchronous = lambda: openai.AsyncOpenAI(
            base_url=f"{self.base}/v1", api_key=self.key, max_retries=0, timeout=LIMIT_S
        )

    def openai(self, key, **options):
        options = {"max_retries": 0, "timeout": LIMIT_S} | options
        return openai.OpenAI(base_url=f"{self.base}/v1", api_key=key, **options)

    def plain(self, headers):
        return httpx2.Client(base_url=self.base, headers=headers, timeout=LIMIT_S, trust_env=False)

    def chat(self, text="Name three colours.", **options):
        """A greedy answer of at most 16 tokens to one message."""
        options = {"temperature": 0, "max_tokens": 16} | options
        messages = options.pop("messages", [{"role": "user", "content": text}])
        return self.client.chat.completions.create(model=self.model, messages=messages, **options)

    def complete(self, prompt="Once upon a time", **options):
        """A greedy completion of at most 12 tokens."""
        options = {"temperature": 0, "max_tokens": 12} | options
        return self.client.completions.create(model=self.model, prompt=prompt, **options)

    def tokenize(self, text, **options):
        return self.post("/tokenize", {"content": text} | options)["tokens"]

    def native(self, path, body, **query):
        """Response to a request; with several models a server needs the name of one."""
        return self.http.post(path, json={"model": self.model} | body, params=self.query | query)

    def post(self, path, body, **query):
        """JSON of a successful request."""
        response = self.native(path, body, **query)
        equal(response.status_code, 200, f"status of {path}: {response.text[:200]}")
        return response.json()

    def get(self, path, **query):
        response = self.http.get(path, params=self.query | query)
        equal(response.status_code, 200, f"status of {path}: {response.text[:200]}")
        return response.json()

    def recording(self, name="quick_brown_fox.wav"):
        return open(self.audio / name, "rb")

    def samples(self, name="quick_brown_fox.wav"):
        """Samples of a recording of 16 kHz as 16-bit integers; the files are of floats, which `wave` does not read."""
        data = (self.audio / name).read_bytes()
        equal(struct.unpack_from("<HHI", data, 20), (3, 1, 16_000), f"format of {name}")
        at = data.index(b"data") + 8
        values = array.array("f", data[at : at + len(data[at:]) // 4 * 4])
        clipped = (max(-1.0, min(1.0, value)) for value in values)
        return array.array("h", (int(value * 32767) for value in clipped)).tobytes()

    def wait_until_idle(self, model=None):
        """Waits until no slot of a model works: a request whose client has gone ends within seconds."""
        end = time.monotonic() + LIMIT_S
        query = {"model": model or self.model}
        while any(slot["is_processing"] for slot in self.get("/slots", **query)):
            expect(time.monotonic() < end, "a slot still works for a client that has gone")
            time.sleep(0.05)

    def predicted_tokens(self):
        """Tokens that all models have drawn since the server's start."""
        lines = self.http.get("/metrics").text.splitlines()
        name = "llamacpp:tokens_predicted_total"
        values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name)]
        expect(values, f"no metric {name}")
        return sum(map(float, values))


class Failed(AssertionError):
    """An expectation of a check that was not met."""


def expect(condition, what):
    if not condition:
        raise Failed(what)


def equal(got, expected, what="value"):
    expect(got == expected, f"{what}: expected {expected!r}, got {got!r}")


def contains(text, part, what="text"):
    expect(part.lower() in text.lower(), f"{what}: expected {part!r} in {text!r}")


def refused(status, call):
    """The API error with one of the statuses that `call` raises."""
    statuses = status if isinstance(status, tuple) else (status,)
    try:
        got = call()
    except openai.APIStatusError as error:
        expect(
            error.status_code in statuses,
            f"status: expected {status}, got {error.status_code}: {error.message[:200]}",
        )
        return error
    raise Failed(f"expected an error with status {status}, got {str(got)[:200]}")


def error_shape(response, status):
    """The error object of a plain response."""
    statuses = status if isinstance(status, tuple) else (status,)
    expect(
        response.status_code in statuses,
        f"status: expected {status}, got {response.status_code}: {response.text[:200]}",
    )
    error = response.json()["error"]
    expect(isinstance(error["message"], str) and error["message"], f"message in {error}")
    expect(isinstance(error["type"], str), f"type in {error}")
    equal(error["code"], response.status_code, "code")
    return error
