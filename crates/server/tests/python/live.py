"""Live speech: /v1/realtime by OpenAI's client, Wyoming by the library of Home Assistant; /asr as Bazarr sends it."""

import asyncio
import base64
import contextlib

from wyoming.asr import Transcribe, Transcript, TranscriptChunk
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong

from harness import LIMIT_S, check, contains, equal, error_shape, expect, refused

FOX = "quick brown fox"
TRANSCRIPTION = "conversation.item.input_audio_transcription"


@contextlib.contextmanager
def session(server, **input):
    """A connection whose session takes samples of 16 kHz."""
    with server.client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        equal(connection.recv().type, "session.created")
        input = {"format": {"type": "audio/pcm", "rate": 16_000}} | input
        connection.session.update(session={"type": "transcription", "audio": {"input": input}})
        equal(connection.recv().type, "session.updated")
        yield connection


def append(connection, audio):
    for at in range(0, len(audio), 3200):
        connection.input_audio_buffer.append(audio=base64.b64encode(audio[at : at + 3200]).decode())


def until(connection, kind):
    """Events up to the first of a type."""
    events = []
    while not events or events[-1].type != kind:
        events.append(connection.recv())
        expect(events[-1].type != "error", f"{events[-1]}")
    return events


def deltas(events):
    return "".join(event.delta for event in events if event.type == f"{TRANSCRIPTION}.delta")


@check
def realtime_ends_an_utterance_in_silence(server):
    with session(server) as connection:
        append(connection, server.samples() + bytes(2 * 16_000))
        events = until(connection, f"{TRANSCRIPTION}.completed")
        contains(events[-1].transcript, FOX)
        equal(deltas(events), events[-1].transcript, "deltas")
        types = [event.type for event in events]
        for name in ("speech_started", "speech_stopped", "committed"):
            expect(f"input_audio_buffer.{name}" in types, f"{name} in {types}")
        expect("conversation.item.added" in types, f"{types}")


@check
def realtime_takes_commits(server):
    with session(server, turn_detection=None, transcription={"language": "en"}) as connection:
        append(connection, server.samples())
        connection.input_audio_buffer.commit()
        contains(until(connection, f"{TRANSCRIPTION}.completed")[-1].transcript, FOX)
        connection.input_audio_buffer.clear()
        until(connection, "input_audio_buffer.cleared")


@check
def realtime_names_the_event_of_an_error(server):
    with session(server) as connection:
        connection.send({"type": "response.create", "event_id": "mine"})
        error = connection.recv()
        equal((error.type, error.error.event_id), ("error", "mine"))


@check
def realtime_takes_a_client_secret(server):
    input = {"transcription": {"language": "en"}, "turn_detection": None}
    session = {"type": "transcription", "audio": {"input": input}}
    secret = server.client.realtime.client_secrets.create(session=session)
    expect(secret.value.startswith("ek_") and secret.expires_at > 0, f"{secret}")
    client = server.openai(secret.value)
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        created = connection.recv()
        equal(created.session.audio.input.transcription.language, "en")
        equal(created.session.audio.input.turn_detection, None)
    refused(401, lambda: client.models.list())


def wyoming(server):
    return AsyncClient.from_uri(server.wyoming, connect_timeout=LIMIT_S, read_timeout=LIMIT_S)


@check
def wyoming_transcribes_a_command(server):
    async def run():
        async with wyoming(server) as client:
            await client.write_event(Transcribe(language="en").event())
            audio, form = server.samples(), {"rate": 16_000, "width": 2, "channels": 1}
            await client.write_event(AudioStart(**form).event())
            for at in range(0, len(audio), 2048):
                await client.write_event(AudioChunk(audio=audio[at : at + 2048], **form).event())
            await client.write_event(AudioStop().event())
            chunks = []
            while (event := await client.read_event()) is not None:
                if TranscriptChunk.is_type(event.type):
                    chunks.append(TranscriptChunk.from_event(event).text)
                if Transcript.is_type(event.type):
                    return "".join(chunks), Transcript.from_event(event)

    chunks, transcript = asyncio.run(run())
    contains(transcript.text, FOX)
    equal((chunks, transcript.language), (transcript.text, "en"))


@check
def wyoming_describes_its_models(server):
    async def run():
        async with wyoming(server) as client:
            await client.write_event(Ping(text="here").event())
            pong = Pong.from_event(await client.read_event())
            await client.write_event(Describe().event())
            return pong, Info.from_event(await client.read_event())

    pong, info = asyncio.run(run())
    equal(pong.text, "here")
    [program] = info.asr
    expect(program.supports_transcript_streaming and program.requires_external_vad, f"{program}")
    expect(server.audio_model in [model.name for model in program.models], f"{program.models}")


@check
def asr_takes_raw_samples(server):
    parameters = {"task": "transcribe", "language": "en", "output": "srt", "encode": "false"}
    reply = server.http.post("/asr", params=parameters, files={"audio_file": server.samples()})
    equal(reply.status_code, 200, reply.text[:200])
    expect(reply.text.startswith("1\n00:00:0") and reply.headers["asr-engine"], reply.text)
    contains(reply.text.replace("\n", " "), FOX)


@check
def asr_names_a_wrong_parameter(server):
    reply = server.http.post("/asr?output=poem", files={"audio_file": server.samples()})
    equal(error_shape(reply, 400)["param"], "output")


@check
def detect_language_has_its_fields(server):
    files = {"audio_file": server.samples()}
    reply = server.http.post("/detect-language?encode=false", files=files)
    if reply.status_code == 501:  # An English-only model.
        return
    equal(sorted(reply.json()), ["confidence", "detected_language", "language_code"])
    equal((reply.json()["language_code"], reply.json()["detected_language"]), ("en", "english"))
