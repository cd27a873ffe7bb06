"""`stonechat mcp` over standard input and output with the SDK of the Model Context Protocol."""

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import time
import wave

import anyio
import mcp
import mcp_types

from harness import LIMIT_S, check, contains, equal, expect

FOX = "quick brown fox"
RATE = 16_000
# Computing it takes longer than a check waits.
LONG_S = 1800
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}},
    "required": ["size"],
    "additionalProperties": False,
}


@contextlib.contextmanager
def folder(server, samples=b""):
    """A root with a recording, beside a file that is not in it, and with a long one of these samples."""
    with tempfile.TemporaryDirectory() as path:
        root = pathlib.Path(path) / "root"
        root.mkdir()
        recording = server.audio / "quick_brown_fox.wav"
        shutil.copy(recording, root / "fox.wav")
        shutil.copy(recording, pathlib.Path(path) / "outside.wav")
        if samples:
            with wave.open(str(root / "long.wav"), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", None))
                file.writeframes(samples)
        yield root


def long_samples(server):
    return server.samples() * (LONG_S * RATE * 2 // len(server.samples()))


def client(server, root, *options, **given):
    """Client that starts the program; its mode is that of today's protocol unless another is given."""
    args = ["mcp", "--model", server.audio_model, "--root", str(root), *options]
    env = {name: os.environ[name] for name in ("STONECHAT_MODELS",) if name in os.environ}
    program = mcp.StdioServerParameters(command=server.stonechat, args=args, env=env)
    return mcp.Client(program, read_timeout_seconds=LIMIT_S, **given)


def finished(coroutine):
    """Result of a coroutine. Clients run in groups of tasks, whose first error is that of the check."""
    try:
        return asyncio.run(coroutine)
    except ExceptionGroup as group:
        error = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def text_of(result):
    [part] = result.content
    equal(part.type, "text", "type of the content")
    return part.text


def failure(result):
    expect(result.is_error, f"expected an error, got {result.content}")
    return text_of(result)


def answer(result):
    expect(not result.is_error, f"error: {result.content}")
    return text_of(result)


@check
def both_eras_of_the_protocol_are_spoken(server):
    async def run(root, mode):
        async with client(server, root, mode=mode) as session:
            names = [tool.name for tool in (await session.list_tools()).tools]
            return session.protocol_version, session.server_info, names

    with folder(server) as root:
        for mode in ("legacy", "auto"):
            version, info, names = finished(run(root, mode))
            expect(version in mcp_types.version.SUPPORTED_PROTOCOL_VERSIONS, f"{mode}: {version}")
            if mode == "legacy":
                # Of initialize alone; later protocols may leave it out.
                equal(info.name, "stonechat")
            equal(names, ["transcribe", "list_models"], mode)


@check
def tools_have_schemas(server):
    async def run(root):
        async with client(server, root, "--llm", server.model) as session:
            return (await session.list_tools()).tools

    with folder(server) as root:
        tools = {tool.name: tool for tool in finished(run(root))}
    equal(sorted(tools), ["generate", "list_models", "transcribe"])
    for name, tool in tools.items():
        expect(tool.description, f"description of {name}")
        equal(tool.input_schema["type"], "object", name)
    equal(tools["transcribe"].input_schema["required"], ["path"])
    equal(tools["generate"].input_schema["required"], ["prompt"])


@check
def transcript_has_each_format(server):
    async def run(root):
        async with client(server, root) as session:
            call = lambda **options: session.call_tool("transcribe", {"path": "fox.wav"} | options)
            plain = answer(await call())
            whole = json.loads(answer(await call(format="json", word_timestamps=True)))
            return plain, whole, answer(await call(format="srt")), answer(await call(format="vtt", language="en"))

    with folder(server) as root:
        plain, whole, srt, vtt = finished(run(root))
    contains(plain, FOX)
    contains(whole["text"], FOX)
    words = [word for segment in whole["segments"] for word in segment["words"]]
    expect(all(word["start"] <= word["end"] for word in words) and len(words) > 5, f"{words}")
    expect(srt.startswith("1\n00:00:0") and vtt.startswith("WEBVTT"), f"{srt!r} {vtt!r}")


@check
def progress_grows_to_the_length(server):
    # Sentences for several windows; one sentence alone, repeated, would be decoded again at each temperature.
    names = ("quick_brown_fox.wav", "counting.wav", "fr_pangrama.wav", "hello_world.wav", "es_hola_mundo.wav")
    samples = b"".join(server.samples(name) for name in names) * 4
    seconds, seen = len(samples) / 2 / RATE, []

    async def note(progress, total, message):
        seen.append((progress, total))

    async def run(root):
        async with client(server, root) as session:
            path = {"path": str(root / "long.wav")}
            return answer(await session.call_tool("transcribe", path, progress_callback=note))

    with folder(server, samples) as root:
        contains(finished(run(root)), FOX)
    values = [progress for progress, _ in seen]
    expect(len(values) > 1 and values == sorted(set(values)), f"{seen}")
    for progress, total in seen:
        expect(abs(total - seconds) < 0.1 and 0 < progress <= total, f"{seen}")


@check
def installed_models_are_listed(server):
    async def run(root):
        async with client(server, root) as session:
            return json.loads(answer(await session.call_tool("list_models")))

    with folder(server) as root:
        models = {model["name"]: model for model in finished(run(root))["models"]}
    equal(models[server.audio_model]["kind"], "speech")
    equal(models[server.model]["kind"], "language")
    expect(models[server.model]["bytes"] > 1_000_000, f"{models}")


@check
def text_is_generated(server):
    async def run(root):
        async with client(server, root, "--llm", server.model) as session:
            generate = lambda **options: session.call_tool("generate", {"prompt": "Describe a stone."} | options)
            text = answer(await generate(system="Be brief.", max_tokens=12))
            reply = json.loads(answer(await generate(json_schema=SCHEMA, max_tokens=40)))
            return text, reply, failure(await generate(max_tokens=100_000)), failure(await generate(json_schema=7))

    with folder(server) as root:
        text, reply, too_many, no_schema = finished(run(root))
    expect(text.strip(), "an empty text")
    expect(reply["size"] in ("small", "large"), f"{reply}")
    contains(too_many, "max_tokens")
    expect(no_schema, "an error without a message")


@check
def errors_are_results(server):
    async def run(root):
        async with client(server, root) as session:
            call = lambda name="transcribe", **options: session.call_tool(name, options)
            outside = [
                failure(await call(path=path))
                for path in ("absent.wav", "../outside.wav", str(root.parent / "outside.wav"), "/etc/passwd")
            ]
            # One error for all, or it would tell which files exist.
            for message in outside:
                contains(message, "expected a file in")
            contains(failure(await call(path=".")), "a regular file")
            contains(failure(await call()), "path")
            contains(failure(await call(path="fox.wav", speed=2)), "speed")
            contains(failure(await call(path="fox.wav", language="xx-none")), "xx-none")
            contains(failure(await call(path="fox.wav", format="poem")), "poem")
            contains(failure(await call("generate", prompt="Hi")), "--llm")
            (root / "text.wav").write_bytes(b"these bytes are no audio" * 100)
            expect(failure(await call(path="text.wav")), "an error without a message")
            return answer(await call(path="fox.wav"))

    with folder(server) as root:
        contains(finished(run(root)), FOX)


def work_of_children():
    """Ticks of processors that the children of this process have used; `None` where the system does not tell."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        return None
    ticks = 0
    for child in children.read_text().split():
        fields = pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks


async def wait_until_children_rest():
    """Waits until they work no more: a call that is cancelled ends within seconds, not with its recording."""
    end = time.monotonic() + LIMIT_S
    last = None
    while (ticks := work_of_children()) is not None and ticks != last:
        expect(time.monotonic() < end, "a cancelled call still works")
        last = ticks
        await anyio.sleep(0.5)


@check
def cancelled_call_ends(server):
    tokens = []

    async def note(message):
        if isinstance(message, mcp_types.ProgressNotification):
            tokens.append(message.params.progress_token)

    async def run(root):
        async with client(server, root, message_handler=note) as session:
            with anyio.CancelScope() as scope:

                async def cancel(progress, total, message):
                    scope.cancel()

                await session.call_tool("transcribe", {"path": "long.wav"}, progress_callback=cancel)
            expect(scope.cancelled_caught, "the call ended before its progress")
            await wait_until_children_rest()
            n = len(tokens)
            text = answer(await session.call_tool("transcribe", {"path": "fox.wav"}))
            equal(len(tokens), n, "notes of progress after the end")
            return text

    with folder(server, long_samples(server)) as root:
        contains(finished(run(root)), FOX)
    expect(tokens, "no progress")


@check
def call_that_times_out_ends(server):
    async def run(root):
        async with client(server, root) as session:
            try:
                await session.call_tool("transcribe", {"path": "long.wav"}, read_timeout_seconds=3)
            except mcp.MCPError as error:
                contains(str(error), "timed out")
            else:
                expect(False, "expected a timeout")
            await wait_until_children_rest()
            return answer(await session.call_tool("transcribe", {"path": "fox.wav"}))

    with folder(server, long_samples(server)) as root:
        contains(finished(run(root)), FOX)
