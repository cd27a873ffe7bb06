"""Agents of pydantic-ai and LangChain: a task of two steps with tools, streams, structured answers, errors."""

import asyncio
import typing

import langchain_core.messages as messages
import langchain_openai
import langgraph.prebuilt
import openai
import pydantic
import pydantic_ai
from langchain_core.tools import tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from harness import check, contains, equal, expect

TASK = "Do this in two steps: find my city, then its weather."
ANSWER = "It is 21 degrees in Oslo."


def pydantic_agent(server, kind=OpenAIChatModel, **options):
    provider = OpenAIProvider(base_url=f"{server.base}/v1", api_key=server.key)
    agent = pydantic_ai.Agent(kind(server.scripted_model, provider=provider), **options)
    calls = []

    @agent.tool_plain
    def get_city() -> str:
        """City of the user."""
        calls.append("get_city")
        return "Oslo"

    @agent.tool_plain
    def get_weather(city: str, unit: typing.Literal["celsius", "kelvin"]) -> str:
        """Weather of a city."""
        calls.append(f"get_weather {city} {unit}")
        return f"21 degrees {unit} in {city}"

    return agent, calls


EXPECTED = ["get_city", "get_weather Oslo celsius"]


@check
def pydantic_ai_does_a_task_of_two_steps(server):
    agent, calls = pydantic_agent(server)
    result = agent.run_sync(TASK)
    equal((result.output, calls), (ANSWER, EXPECTED))
    usage = result.usage
    equal((usage.requests, usage.tool_calls), (3, 2), f"{usage}")
    expect(usage.input_tokens > 0 and usage.output_tokens > 0, f"{usage}")


@check
def pydantic_ai_does_it_with_responses(server):
    agent, calls = pydantic_agent(server, kind=OpenAIResponsesModel)
    equal((agent.run_sync(TASK).output, calls), (ANSWER, EXPECTED))


@check
def pydantic_ai_streams_a_task(server):
    async def run(kind):
        agent, calls = pydantic_agent(server, kind=kind)
        async with agent.run_stream(TASK) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
        return parts, calls

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        parts, calls = asyncio.run(run(kind))
        equal(("".join(parts), calls), (ANSWER, EXPECTED), kind.__name__)
        expect(len(parts) > 1, f"{parts}")


@check
def pydantic_ai_reads_reasoning(server):
    agent, _ = pydantic_agent(server)
    result = agent.run_sync("Think of a stone.")
    equal(result.output, "Granite is a hard stone.")
    thoughts = [part.content for part in result.response.parts if part.part_kind == "thinking"]
    equal([thought.strip() for thought in thoughts], ["A stone is asked for. Granite fits."])


@check
def pydantic_ai_takes_the_history(server):
    agent, _ = pydantic_agent(server)
    first = agent.run_sync(TASK)
    again = agent.run_sync("Hello", message_history=first.all_messages())
    equal(again.output, "Granite is a hard stone.")


@check
def pydantic_ai_gets_structured_answers(server):
    class Stone(pydantic.BaseModel):
        hard: bool
        size: typing.Literal["small", "large"]

    output = pydantic_ai.NativeOutput(Stone)
    provider = OpenAIProvider(base_url=f"{server.base}/v1", api_key=server.key)
    agent = pydantic_ai.Agent(OpenAIChatModel(server.scripted_model, provider=provider), output_type=output)
    result = agent.run_sync("Describe it.", model_settings={"max_tokens": 60})
    expect(isinstance(result.output, Stone), f"{result.output}")


@check
def pydantic_ai_gets_structured_answers_with_tools(server):
    class Sky(pydantic.BaseModel):
        sky: typing.Literal["blue", "grey"]

    provider = OpenAIProvider(base_url=f"{server.base}/v1", api_key=server.key)
    model = OpenAIChatModel(server.scripted_model, provider=provider)
    agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Sky))
    calls = []

    @agent.tool_plain
    def get_weather(city: str, unit: str) -> str:
        calls.append((city, unit))
        return "21 degrees"

    settings = {"max_tokens": 200, "temperature": 0}
    equal(agent.run_sync("Describe the sky as JSON.", model_settings=settings).output, Sky(sky="blue"))
    equal(calls, [])


@check
def pydantic_ai_names_errors(server):
    # Any name is that of the only language model: the error is of another field.
    agent, _ = pydantic_agent(server, model_settings={"temperature": -1.0})
    try:
        agent.run_sync("Hello")
    except ModelHTTPError as error:
        equal(error.status_code, 400)
        contains(str(error), "temperature")
    else:
        expect(False, "a wrong temperature was taken")


@check
def pydantic_ai_cancels_a_stream(server):
    async def run():
        agent, _ = pydantic_agent(server)
        async with agent.run_stream("Tell me a long story.") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                return

    asyncio.run(run())
    server.wait_until_idle(server.scripted_model)


def langchain_model(server, **options):
    return langchain_openai.ChatOpenAI(
        model=server.scripted_model,
        base_url=f"{server.base}/v1",
        api_key=server.key,
        max_retries=0,
        **options,
    )


def langchain_agent(server, **options):
    calls = []

    @tool
    def get_city() -> str:
        """City of the user."""
        calls.append("get_city")
        return "Oslo"

    @tool
    def get_weather(city: str, unit: typing.Literal["celsius", "kelvin"]) -> str:
        """Weather of a city."""
        calls.append(f"get_weather {city} {unit}")
        return f"21 degrees {unit} in {city}"

    model = langchain_model(server, **options)
    return langgraph.prebuilt.create_react_agent(model, [get_city, get_weather]), calls


@check
def langchain_does_a_task_of_two_steps(server):
    for options in ({}, {"use_responses_api": True}):
        agent, calls = langchain_agent(server, **options)
        result = agent.invoke({"messages": [("user", TASK)]})
        text = result["messages"][-1].text
        equal((text if isinstance(text, str) else text(), calls), (ANSWER, EXPECTED), str(options))


@check
def langchain_streams_a_task(server):
    agent, calls = langchain_agent(server, stream_usage=True)
    text = ""
    for chunk, _ in agent.stream({"messages": [("user", TASK)]}, stream_mode="messages"):
        if isinstance(chunk, messages.AIMessageChunk) and isinstance(chunk.content, str):
            text += chunk.content
    equal((text, calls), (ANSWER, EXPECTED))


@check
def langchain_merges_chunks_of_calls(server):
    agent = langchain_model(server).bind_tools([get_weather_tool(), run_code_tool()])
    whole = None
    for chunk in agent.stream("Do this in parallel."):
        whole = chunk if whole is None else whole + chunk
    equal([call["name"] for call in whole.tool_calls], ["get_weather", "run_code", "get_weather"])
    equal(whole.tool_calls[1]["args"]["path"], "C:\\path\\new")
    equal(whole.invalid_tool_calls, [])


def get_weather_tool():
    @tool
    def get_weather(city: str, unit: str = "celsius") -> str:
        """Weather of a city."""

    return get_weather


def run_code_tool():
    @tool
    def run_code(code: str, path: str) -> str:
        """Runs code."""

    return run_code


@check
def langchain_takes_the_choice_of_a_tool(server):
    model = langchain_model(server).bind_tools([get_weather_tool(), run_code_tool()], tool_choice="get_weather")
    equal({call["name"] for call in model.invoke("Hello").tool_calls}, {"get_weather"})


@check
def langchain_gets_structured_answers(server):
    class Stone(pydantic.BaseModel):
        hard: bool
        size: typing.Literal["small", "large"]

    model = langchain_model(server, max_tokens=60).with_structured_output(Stone)
    expect(isinstance(model.invoke("Describe it."), Stone), "no object")


@check
def langchain_names_errors(server):
    try:
        # Without the option unknown tools go to /v1/responses, which leaves them out.
        langchain_model(server, use_responses_api=False).bind(tools=[{"type": "poem"}]).invoke("Hello")
    except openai.BadRequestError as error:
        contains(str(error), "tools[0].type")
    else:
        expect(False, "a wrong tool was taken")
