"""/v1/audio/transcriptions and /translations."""

import asyncio
import functools
import re

import openai

from harness import check, contains, equal, error_shape, expect, refused

FOX = "quick brown fox"


def transcribe(server, name="quick_brown_fox.wav", **options):
    options = {"model": server.audio_model} | options
    with server.recording(name) as file:
        return server.client.audio.transcriptions.create(file=file, **options)


@functools.cache
def transcribed(server):
    """The answer without options, which several checks look at: each request takes a second."""
    return transcribe(server)


def translate(server, name="es_hola_mundo.wav", **options):
    with server.recording(name) as file:
        return server.client.audio.translations.create(
            file=file, model=server.audio_model, **options
        )


def form(server, fields, name="quick_brown_fox.wav"):
    """A form as a client without OpenAI's library sends it."""
    with server.recording(name) as file:
        return server.http.post("/v1/audio/transcriptions", data=fields, files={"file": file})


@check
def text_of_a_recording(server):
    contains(transcribed(server).text, FOX)


@check
def json_has_usage(server):
    usage = transcribed(server).usage
    equal(usage.type, "duration", "type of usage")
    expect(usage.seconds > 1, f"{usage}")


@check
def text_is_plain(server):
    text = transcribe(server, response_format="text")
    expect(isinstance(text, str) and not text.lstrip().startswith("{"), repr(text))
    contains(text, FOX)


@check
def srt_has_numbers_and_times(server):
    text = transcribe(server, response_format="srt")
    expect(re.match(r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\n", text), repr(text))
    contains(text, FOX)


@check
def vtt_has_its_header(server):
    text = transcribe(server, response_format="vtt")
    expect(re.match(r"WEBVTT\n\n(\d\d:)?00:0\d\.\d{3} --> (\d\d:)?00:0\d\.\d{3}\n", text), repr(text))
    contains(text, FOX)


def check_segments(reply):
    expect(reply.segments, "no segments")
    end = 0
    for n, segment in enumerate(reply.segments):
        equal(segment.id, n, "id")
        expect(end <= segment.start < segment.end <= reply.duration + 0.5, f"{segment}")
        expect(segment.tokens and segment.avg_logprob <= 0, f"{segment}")
        expect(0 <= segment.no_speech_prob <= 1 and segment.compression_ratio > 0, f"{segment}")
        end = segment.start
    equal("".join(segment.text for segment in reply.segments).strip(), reply.text.strip())


def check_words(reply):
    expect(reply.words, "no words")
    end = 0
    for word in reply.words:
        expect(end <= word.start <= word.end <= reply.duration + 0.5, f"{word}")
        end = word.start
    contains(" ".join(word.word.strip() for word in reply.words), FOX, "words")


@check
def verbose_json_has_segments(server):
    reply = transcribe(server, response_format="verbose_json")
    equal((reply.language, reply.model_extra.get("task")), ("english", "transcribe"))
    expect(1 < reply.duration < 30, f"{reply.duration}")
    check_segments(reply)
    expect(not reply.words, "words without asking")


@check
def segment_granularity(server):
    granularities = ["segment"]
    reply = transcribe(
        server, response_format="verbose_json", timestamp_granularities=granularities
    )
    check_segments(reply)
    expect(not reply.words, "words without asking")


@check
def word_granularity(server):
    reply = transcribe(server, response_format="verbose_json", timestamp_granularities=["word"])
    check_words(reply)


@check
def both_granularities(server):
    both = ["word", "segment"]
    reply = transcribe(server, response_format="verbose_json", timestamp_granularities=both)
    check_words(reply)
    check_segments(reply)


@check
def granularity_without_brackets(server):
    fields = {
        "model": server.audio_model,
        "response_format": "verbose_json",
        "timestamp_granularities": "word",
    }
    reply = form(server, fields)
    equal(reply.status_code, 200, f"status: {reply.text[:200]}")
    expect(reply.json()["words"], "no words")


@check
def content_types_follow_the_format(server):
    # The server's own tests have the others.
    for name, expected in (("json", "application/json"), ("vtt", "text/vtt")):
        reply = form(server, {"model": server.audio_model, "response_format": name})
        contains(reply.headers["content-type"], expected, f"content-type of {name}")


@check
def stream_has_deltas_and_an_end(server):
    events = list(transcribe(server, stream=True))
    equal(events[-1].type, "transcript.text.done", "type of the last event")
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    expect(deltas, "no deltas")
    equal("".join(delta.delta for delta in deltas).strip(), events[-1].text.strip())
    contains(events[-1].text, FOX)


@check
def stream_is_the_whole_text(server):
    end = list(transcribe(server, stream=True))[-1]
    equal(end.text.strip(), transcribed(server).text.strip())


@check
def language_is_taken(server):
    contains(transcribe(server, language="en").text, FOX)


@check
def language_is_detected(server):
    reply = transcribe(server, name="es_hola_mundo.wav", response_format="verbose_json")
    equal(reply.language, "spanish")
    contains(reply.text, "mundo")


@check
def prompt_and_temperature_are_taken(server):
    contains(transcribe(server, prompt="A sentence about animals.", temperature=0).text, FOX)


@check
def results_repeat(server):
    equal(transcribe(server).text, transcribed(server).text)


@check
def any_speech_model_name_is_taken(server):
    contains(transcribe(server, model="whisper-1").text, FOX)


@check
def compressed_formats_are_read(server):
    # The server's own tests have the others.
    for name in ("fox.mp3", "fox.webm"):
        contains(transcribe(server, name=f"formats/{name}").text, FOX, name)


@check
def stereo_is_mixed(server):
    contains(transcribe(server, name="formats/fox_stereo.mp4").text, FOX)


@check
def translation_is_english(server):
    contains(translate(server).text, "world")


@check
def translation_formats(server):
    contains(translate(server, response_format="text"), "world")
    contains(translate(server, response_format="srt"), "-->")


@check
def translation_with_segments(server):
    reply = translate(server, response_format="verbose_json")
    equal(reply.language, "english")
    expect(reply.segments, "no segments")


@check
def bytes_that_are_no_audio_are_refused(server):
    create = server.client.audio.transcriptions.create
    file = ("talk.wav", b"these bytes are no audio" * 100)
    refused((400, 422), lambda: create(file=file, model=server.audio_model))


@check
def empty_file_is_refused(server):
    create = server.client.audio.transcriptions.create
    refused((400, 422), lambda: create(file=("talk.wav", b""), model=server.audio_model))


@check
def file_is_needed(server):
    reply = server.http.post(
        "/v1/audio/transcriptions", data={"model": server.audio_model}, files={"other": b"x"}
    )
    error_shape(reply, (400, 422))


@check
def unknown_format_is_refused(server):
    refused((400, 422), lambda: transcribe(server, response_format="poem"))


@check
def unknown_language_is_refused(server):
    refused((400, 422), lambda: transcribe(server, language="xx-none"))


@check
def temperature_must_be_a_number(server):
    reply = form(server, {"model": server.audio_model, "temperature": "hot"})
    error_shape(reply, (400, 422))


@check
def uploads_at_a_time_have_the_same_texts(server):
    names = ["quick_brown_fox.wav", "hello_world.wav"] * 2
    alone = {name: transcribe(server, name=name, temperature=0).text for name in set(names)}

    async def upload(client, name):
        with server.recording(name) as file:
            reply = await client.audio.transcriptions.create(
                file=file, model=server.audio_model, temperature=0
            )
        return reply.text

    async def run():
        async with server.asynchronous() as client:
            return await asyncio.gather(*(upload(client, name) for name in names))

    equal(asyncio.run(run()), [alone[name] for name in names])


@check
def chat_runs_beside_uploads(server):
    alone = server.chat().choices[0].message.content

    async def run():
        async with server.asynchronous() as client:
            with server.recording() as file:
                upload = client.audio.transcriptions.create(file=file, model=server.audio_model)
                chat = client.chat.completions.create(
                    model=server.model,
                    messages=[{"role": "user", "content": "Name three colours."}],
                    temperature=0,
                    max_tokens=16,
                )
                return await asyncio.gather(upload, chat)

    upload, chat = asyncio.run(run())
    contains(upload.text, FOX)
    equal(chat.choices[0].message.content, alone)


@check
def upload_that_times_out_leaves_the_server_healthy(server):
    client = server.openai(server.key, timeout=0.001)
    try:
        with server.recording() as file:
            client.audio.transcriptions.create(file=file, model=server.audio_model)
    except openai.APITimeoutError:
        contains(transcribe(server).text, FOX)
        return
    expect(False, "expected a timeout")
