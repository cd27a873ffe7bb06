"""Voice agents: LiveKit's and Pipecat's services for transcription and chat, over requests and over /v1/realtime."""

import asyncio

import aiohttp
from livekit import rtc
from livekit.agents import APIStatusError, llm, stt, utils
from livekit.plugins import openai as livekit
from pipecat.frames.frames import (
    InputAudioRawFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.tests.utils import SleepFrame, run_test

from harness import LIMIT_S, check, contains, equal, expect

FOX = "quick brown fox"
RATE = 16_000
SILENCE = bytes(2 * RATE)


def livekit_frames(audio, bytes_per_frame=3200):
    for at in range(0, len(audio), bytes_per_frame):
        part = audio[at : at + bytes_per_frame]
        yield rtc.AudioFrame(data=part, sample_rate=RATE, num_channels=1, samples_per_channel=len(part) // 2)


def livekit_stt(server, model=None, **options):
    options = {"language": "en"} | options
    return livekit.STT(model=model or server.audio_model, base_url=f"{server.base}/v1", api_key=server.key, **options)


@check
def livekit_transcribes_a_recording(server):
    async def run():
        event = await livekit_stt(server).recognize(list(livekit_frames(server.samples())))
        return event.alternatives[0].text

    contains(asyncio.run(run()), FOX)


@check
def livekit_takes_prompts_and_detects_languages(server):
    async def run():
        audio = list(livekit_frames(server.samples("es_hola_mundo.wav")))
        event = await livekit_stt(server, detect_language=True, prompt="Mundo.").recognize(audio)
        return event.alternatives[0].text

    contains(asyncio.run(run()), "mundo")


@check
def livekit_names_errors(server):
    async def run():
        wrong = livekit.STT(model=server.audio_model, base_url=f"{server.base}/v1", api_key="wrong")
        await wrong.recognize(list(livekit_frames(server.samples())))

    try:
        asyncio.run(run())
    except APIStatusError as error:
        equal(error.status_code, 401)
    else:
        expect(False, "a wrong key was taken")


async def livekit_stream(server, audio, language=None):
    """Events of a stream to the final text of its first utterance."""
    events = []
    async with aiohttp.ClientSession() as session:
        service = livekit_stt(server, use_realtime=True)
        service._session = session  # A job of LiveKit has one of its own.
        async with service.stream() as stream:
            if language:
                service.update_options(language=language)
            for frame in livekit_frames(audio):
                stream.push_frame(frame)
            stream.flush()
            async for event in stream:
                events.append(event)
                if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
                    break
        await service.aclose()
    return events


@check
def livekit_streams_over_realtime(server):
    audio = server.samples() + 2 * SILENCE
    events = asyncio.run(asyncio.wait_for(livekit_stream(server, audio), LIMIT_S))
    contains(events[-1].alternatives[0].text, FOX)


@check
def livekit_changes_only_the_language(server):
    # LocalAI 10295: the model stays.
    audio = server.samples() + 2 * SILENCE
    events = asyncio.run(asyncio.wait_for(livekit_stream(server, audio, language="en"), LIMIT_S))
    contains(events[-1].alternatives[0].text, FOX)


def livekit_llm(server):
    return livekit.LLM(model=server.scripted_model, base_url=f"{server.base}/v1", api_key=server.key)


@check
def livekit_chats_with_tools(server):
    @llm.function_tool
    async def get_weather(city: str, unit: str) -> str:
        """Weather of a city."""

    async def run(text):
        context = llm.ChatContext.empty()
        context.add_message(role="user", content=text)
        content, calls = "", []
        async with livekit_llm(server).chat(chat_ctx=context, tools=[get_weather]) as stream:
            async for chunk in stream:
                if chunk.delta:
                    content += chunk.delta.content or ""
                    calls += chunk.delta.tool_calls
        return content, [(call.name, call.arguments) for call in calls]

    content, calls = asyncio.run(run("Hello"))
    equal((content, calls), ("Granite is a hard stone.", []))
    _, [(name, arguments)] = asyncio.run(run("What is the weather?"))
    equal(name, "get_weather")
    contains(arguments, '"Oslo"', "arguments")


def pipecat_frames(audio):
    frames = [InputAudioRawFrame(audio=SILENCE, sample_rate=RATE, num_channels=1), VADUserStartedSpeakingFrame()]
    for at in range(0, len(audio), 3200):
        frames.append(InputAudioRawFrame(audio=audio[at : at + 3200], sample_rate=RATE, num_channels=1))
    return [*frames, VADUserStoppedSpeakingFrame()]


async def pipecat_texts(service, frames):
    params = PipelineParams(audio_in_sample_rate=RATE)
    down, _ = await run_test(service, frames_to_send=frames, pipeline_params=params, start_timeout=LIMIT_S)
    return [frame.text for frame in down if isinstance(frame, TranscriptionFrame)]


@check
def pipecat_transcribes_a_segment(server):
    service = OpenAISTTService(
        api_key=server.key,
        base_url=f"{server.base}/v1",
        settings=OpenAISTTService.Settings(model=server.audio_model),
        include_prob_metrics=True,
    )
    frames = pipecat_frames(server.samples())
    [text] = asyncio.run(asyncio.wait_for(pipecat_texts(service, frames), LIMIT_S))
    contains(text, FOX)


@check
def pipecat_streams_over_realtime(server):
    # Its own voice activity detection commits the audio.
    service = OpenAIRealtimeSTTService(
        api_key=server.key,
        base_url=f"{server.base.replace('http', 'ws', 1)}/v1/realtime",
        settings=OpenAIRealtimeSTTService.Settings(model=server.audio_model),
    )
    frames = [SleepFrame(sleep=1.0), *pipecat_frames(server.samples()), SleepFrame(sleep=20.0)]
    texts = asyncio.run(asyncio.wait_for(pipecat_texts(service, frames), LIMIT_S))
    contains(" ".join(texts), FOX)
