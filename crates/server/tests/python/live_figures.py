"""Figures of live speech: delay of the first words, and errors beside those of a whole recording.

A clip of 60 s is joined from recordings of a corpus (--corpus or STONECHAT_CORPUS: manifest.jsonl with `file`, `language`,
`reference`), each of which is an utterance, and sent in pieces of 100 ms at the time at which their last sample would
have been recorded.

    delay of an utterance = arrival of the first text that has one of its words
                          - time at which the first loud sample of the recording was sent

Words belong to utterances by the alignment of all text with all references. An utterance without words counts as an
endless delay. Errors are of words without case, punctuation and titles that are abbreviated. `/v1/audio/transcriptions`
takes no audio in real time, so that it serves as the whole recording.
"""

import array
import asyncio
import base64
import dataclasses
import functools
import io
import json
import math
import os
import re
import statistics
import time
import wave

import soundfile
from wyoming.asr import Transcribe, Transcript, TranscriptChunk
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient

from harness import LIMIT_S, check, expect

RATE = 16_000
# Bytes of a piece, 100 ms of 16-bit samples.
PIECE = 2 * RATE // 10
# Silence after each recording, which ends the utterance.
GAP = bytes(2 * RATE * 3 // 2)
CLIP_S, N_CLIPS = 60, 3
# Samples of a measurement of loudness, and its ratio to the loudest one from which on it is speech.
FRAME, LOUD = 320, 0.05
MAX_FIRST_WORDS_S, MAX_ERROR_POINTS = 2.5, 1.0
TRANSCRIPTION = "conversation.item.input_audio_transcription"
TITLES = {"mr": "mister", "mrs": "missus", "dr": "doctor", "st": "saint"}


@dataclasses.dataclass
class Clip:
    """Audio of several utterances."""

    audio: bytes = b""
    # Seconds from the start of the clip to that of each utterance's speech.
    starts: list = dataclasses.field(default_factory=list)
    # Words, each with the number of its utterance.
    words: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Heard:
    """Transcript, and its parts with the seconds from the start of the clip to their arrival."""

    text: str
    parts: list


def words_of(text):
    words = re.sub(r"[^\w' ]", " ", text.lower().replace("’", "'")).split()
    return [TITLES.get(word, word) for word in words]


def speech_start(samples):
    """Seconds before the first loud frame."""
    frames = [samples[at : at + FRAME] for at in range(0, len(samples), FRAME)]
    levels = [math.sqrt(sum(x * x for x in frame) / len(frame)) for frame in frames]
    return next(i for i, level in enumerate(levels) if level >= LOUD * max(levels)) * FRAME / RATE


def is_usable(entry, path):
    is_english = entry["language"] == "en" and entry.get("metric", "wer") == "wer"
    is_original = not entry.get("derived") and not entry.get("synthetic") and entry.get("reference")
    is_checked = entry.get("ref_quality", "corpus") in ("corpus", "human")
    if not (is_english and is_original and is_checked and path.suffix in (".wav", ".flac")):
        return False
    info = soundfile.info(path)
    return info.samplerate == RATE and info.channels == 1 and 2 <= info.duration <= 20


@functools.cache
def clips(corpus):
    """Clips of 60 s, from the recordings in the order of the manifest."""
    found = [Clip()]
    for line in (corpus / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        path = corpus / entry["file"]
        if not is_usable(entry, path):
            continue
        samples = array.array("h", soundfile.read(path, dtype="int16")[0].tobytes())
        clip = found[-1]
        n = len(clip.starts)
        clip.starts.append(len(clip.audio) / 2 / RATE + speech_start(samples))
        clip.words += [(word, n) for word in words_of(entry["reference"])]
        clip.audio += samples.tobytes() + GAP
        if len(clip.audio) >= 2 * RATE * CLIP_S:
            if len(found) == N_CLIPS:
                return found
            found.append(Clip())
    expect(len(found) > 1, f"expected {CLIP_S} s of English speech, 16 kHz, in {corpus}")
    return found[:-1]


def alignment(reference, heard):
    """Pairs of indices of aligned words, equal or substituted, and the number of errors."""
    costs = [list(range(len(heard) + 1))]
    for i, word in enumerate(reference, 1):
        row = [i]
        for j, other in enumerate(heard, 1):
            row.append(min(costs[-1][j - 1] + (word != other), costs[-1][j] + 1, row[-1] + 1))
        costs.append(row)
    i, j, pairs = len(reference), len(heard), []
    while i and j:
        cost = costs[i][j]
        if cost == costs[i - 1][j - 1] + (reference[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif cost == costs[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
    return pairs, costs[-1][-1]


def delays(clip, parts):
    """Seconds from the start of each utterance to its first words."""
    heard = [(word, arrival) for arrival, text in parts for word in words_of(text)]
    pairs, _ = alignment([word for word, _ in clip.words], [word for word, _ in heard])
    first = [math.inf] * len(clip.starts)
    for i, j in pairs:
        utterance = clip.words[i][1]
        first[utterance] = min(first[utterance], heard[j][1] - clip.starts[utterance])
    return first


async def in_real_time(audio, start, send):
    """Sends pieces when their last sample would have been recorded."""
    for i, at in enumerate(range(0, len(audio), PIECE), 1):
        await asyncio.sleep(start + i * PIECE / 2 / RATE - time.monotonic())
        await send(audio[at : at + PIECE])


async def by_realtime(server, clip, silence_ms=None):
    input = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": {"language": "en"}}
    if silence_ms:
        input["turn_detection"] = {"type": "server_vad", "silence_duration_ms": silence_ms}
    async with server.asynchronous() as client, client.realtime.connect(
        extra_query={"intent": "transcription", "model": server.audio_model}
    ) as connection:
        await connection.session.update(session={"type": "transcription", "audio": {"input": input}})
        while (await connection.recv()).type != "session.updated":
            pass
        start, parts, texts = time.monotonic(), [], []

        async def append(piece):
            await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())

        async def send():
            await in_real_time(clip.audio, start, append)
            # The first commit ends an utterance that is open; the second finds none, which is the error below.
            for name in ("first", "last"):
                await connection.send({"type": "input_audio_buffer.commit", "event_id": name})

        sending = asyncio.create_task(send())
        async for event in connection:
            if event.type == f"{TRANSCRIPTION}.delta":
                parts.append((time.monotonic() - start, event.delta))
            elif event.type == f"{TRANSCRIPTION}.completed":
                texts.append(event.transcript)
            elif event.type == "error":
                code, name = event.error.code, event.error.event_id
                expect(code == "input_audio_buffer_commit_empty", f"{event}")
                if name == "last":
                    break
        await sending
    return Heard(" ".join(texts), parts)


async def by_wyoming(server, clip):
    form = {"rate": RATE, "width": 2, "channels": 1}
    uri = server.wyoming
    async with AsyncClient.from_uri(uri, connect_timeout=LIMIT_S, read_timeout=LIMIT_S) as client:
        await client.write_event(Transcribe(name=server.audio_model, language="en").event())
        await client.write_event(AudioStart(**form).event())
        start, parts = time.monotonic(), []

        async def send():
            chunk = lambda piece: client.write_event(AudioChunk(audio=piece, **form).event())  # noqa: E731
            await in_real_time(clip.audio, start, chunk)
            await client.write_event(AudioStop().event())

        sending = asyncio.create_task(send())
        while (event := await client.read_event()) is not None:
            if TranscriptChunk.is_type(event.type):
                text = TranscriptChunk.from_event(event).text
                parts.append((time.monotonic() - start, text))
            elif Transcript.is_type(event.type):
                await sending
                return Heard(Transcript.from_event(event).text, parts)
    expect(False, "the connection ended without a transcript")


@functools.cache
def whole(server, n):
    """Text of a clip as one recording."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
        out.writeframes(clips(server.corpus)[n].audio)
    upload = ("clip.wav", file.getvalue())
    transcriptions = server.client.audio.transcriptions
    return transcriptions.create(model=server.audio_model, file=upload, language="en").text


def measure(server, protocol, transcribe):
    found, n_words, errors, whole_errors = [], 0, 0, 0
    for n, clip in enumerate(clips(server.corpus)):
        limit = LIMIT_S + len(clip.audio) / 2 / RATE
        heard = asyncio.run(asyncio.wait_for(transcribe(server, clip), limit))
        reference = [word for word, _ in clip.words]
        found += delays(clip, heard.parts)
        n_words += len(reference)
        errors += alignment(reference, words_of(heard.text))[1]
        whole_errors += alignment(reference, words_of(whole(server, n)))[1]
    rate, whole_rate = 100 * errors / n_words, 100 * whole_errors / n_words
    median, slow = statistics.median(found), sorted(found)[len(found) * 9 // 10]
    print(
        f"{protocol}: first words after {median:.2f} s (median of {len(found)} utterances; 90 %: {slow:.2f} s); "
        f"WER {rate:.2f} % live, {whole_rate:.2f} % whole recording ({n_words} words; {os.cpu_count()} CPUs)",
        flush=True,
    )
    expect(median <= MAX_FIRST_WORDS_S, f"first words: expected at most {MAX_FIRST_WORDS_S} s, got {median:.2f}")
    most = whole_rate + MAX_ERROR_POINTS
    expect(rate <= most, f"WER: expected at most {most:.2f} %, got {rate:.2f}")


@check
def realtime(server):
    measure(server, "realtime WebSocket", by_realtime)


@check
def realtime_with_turns_of_a_second_of_silence(server):
    transcribe = functools.partial(by_realtime, silence_ms=1000)
    measure(server, "realtime WebSocket, silence of 1 s", transcribe)


@check
def wyoming(server):
    measure(server, "Wyoming", by_wyoming)
