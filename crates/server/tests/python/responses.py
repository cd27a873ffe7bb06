"""/v1/responses with OpenAI's client, written by the scripted model."""

import asyncio
import json

import openai
import pydantic

from harness import LIMIT_S, check, contains, equal, expect, refused

ANSWER = "Granite is a hard stone."
THOUGHT = "A stone is asked for. Granite fits."
TEXT = {"type": "string"}


def function(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "name": name, "parameters": schema, "strict": False}


CITY = function("get_city")
WEATHER = function("get_weather", city=TEXT)
WEATHER["parameters"]["properties"]["unit"] = {"enum": ["celsius", "kelvin"]}
CODE = function("run_code", code=TEXT, path=TEXT)
TOOLS = [CITY, WEATHER, CODE]
TASK = "Do this in two steps: find my city, then its weather."


def ask(server, text, **options):
    options = {"max_output_tokens": 800} | options
    create = server.client.responses.create
    return create(model=server.scripted_model, input=text, **options)


def calls_of(response):
    return [item for item in response.output if item.type == "function_call"]


def run_tools(calls):
    results = {"get_city": "Oslo", "get_weather": "21 degrees"}
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": results[call.name]}
        for call in calls
    ]


@check
def answer_has_its_fields(server):
    response = ask(server, "Hello", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    equal((response.output_text, response.status), (ANSWER, "completed"))
    equal((response.object, response.model), ("response", server.scripted_model))
    equal((response.instructions, response.metadata), ("Be brief.", {"a": "b"}))
    equal((response.temperature, response.error), (0.5, None))
    usage = response.usage
    equal(usage.total_tokens, usage.input_tokens + usage.output_tokens, "total_tokens")
    equal(usage.output_tokens_details.reasoning_tokens, 0, "reasoning_tokens")


@check
def stream_is_in_order(server):
    stream = ask(server, "Hello", stream=True)
    events = list(stream)
    equal([event.sequence_number for event in events], list(range(len(events))), "numbers")
    types = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    expected = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
    expected += ["output_text.done", "content_part.done", "output_item.done", "completed"]
    equal(types, expected, "types")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    equal((text, events[-1].response.output_text), (ANSWER, ANSWER))


@check
def stream_helper_collects_the_answer(server):
    with server.client.responses.stream(model=server.scripted_model, input="Hello") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        equal((text, stream.get_final_response().output_text), (ANSWER, ANSWER))


@check
def reasoning_is_an_item(server):
    response = ask(server, "Think of a stone.")
    thought, message = response.output
    equal((thought.type, message.type), ("reasoning", "message"))
    equal((thought.content[0].text.strip(), thought.summary), (THOUGHT, []))
    equal(message.content[0].text, ANSWER)
    usage = response.usage
    n = usage.output_tokens_details.reasoning_tokens
    expect(0 < n < usage.output_tokens, f"{n} tokens of reasoning of {usage.output_tokens}")


@check
def reasoning_leaves_calls_out(server):
    for stream in (False, True):
        response = ask(server, "What is the weather?", tools=TOOLS, stream=stream)
        response = list(response)[-1].response if stream else response
        n = response.usage.output_tokens_details.reasoning_tokens
        # The call is longer than the reasoning.
        expect(0 < 2 * n < response.usage.output_tokens, f"{response.usage}")


@check
def summary_takes_the_place_of_reasoning(server):
    events = list(ask(server, "Think of a stone.", reasoning={"summary": "auto"}, stream=True))
    types = [event.type for event in events]
    expect(not [name for name in types if "reasoning_text" in name], f"{types}")
    deltas = [event for event in events if event.type == "response.reasoning_summary_text.delta"]
    equal("".join(event.delta for event in deltas).strip(), THOUGHT)
    equal({(event.output_index, event.summary_index) for event in deltas}, {(0, 0)}, "indices")
    names = ["part.added", "text.done", "part.done"]
    for name in names:
        equal(types.count(f"response.reasoning_summary_{name}"), 1, name)
    thought = events[-1].response.output[0]
    equal((thought.summary[0].text.strip(), thought.content), (THOUGHT, []))


@check
def tools_take_their_round(server):
    items = [{"role": "user", "content": TASK}]
    names = []
    for _ in range(3):
        response = ask(server, items, tools=TOOLS, store=False)
        calls = calls_of(response)
        names += [call.name for call in calls]
        items += [item.model_dump(exclude_none=True) for item in response.output] + run_tools(calls)
    equal(names, ["get_city", "get_weather"])
    equal(response.output_text, "It is 21 degrees in Oslo.")


@check
def tools_go_on_from_the_previous_response(server):
    response, names = ask(server, TASK, tools=TOOLS), []
    while calls := calls_of(response):
        names += [call.name for call in calls]
        expect(len(names) < 5, f"{names}")
        options = {"previous_response_id": response.id, "tools": TOOLS}
        response = ask(server, run_tools(calls), **options)
    equal(names, ["get_city", "get_weather"])
    equal(response.output_text, "It is 21 degrees in Oslo.")


@check
def parallel_calls_stream_whole(server):
    # llama.cpp 22072, mistral.rs 2309; arguments with braces and backslashes: ollama 15254, 16937.
    events = list(ask(server, "Do this in parallel.", tools=TOOLS, stream=True))
    arguments = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
    calls = calls_of(events[-1].response)
    equal([call.name for call in calls], ["get_weather", "run_code", "get_weather"])
    equal([arguments[call.id] for call in calls], [call.arguments for call in calls])
    equal(json.loads(calls[1].arguments), {"code": 'if (x) { y("}"); }', "path": "C:\\path\\new"})
    equal(len({call.call_id for call in calls}), 3, "identifiers of calls")


@check
def other_tools_are_ignored(server):
    # codex 10635.
    tools = [{"type": "web_search"}, {"type": "custom", "name": "patch"}, *TOOLS]
    response = ask(server, "What is the weather?", tools=tools)
    equal([call.name for call in calls_of(response)], ["get_weather"])


@check
def conversation_goes_on(server):
    first = ask(server, "Think of a stone.")
    second = ask(server, "Hello", previous_response_id=first.id)
    equal((second.output_text, second.previous_response_id), (ANSWER, first.id))
    expect(second.usage.input_tokens > first.usage.input_tokens, "the first message is in the prompt")
    reference = {"type": "item_reference", "id": first.output[-1].id}
    hello = {"role": "user", "content": "Hello"}
    equal(ask(server, [hello, reference, hello]).output_text, ANSWER)
    equal(server.client.responses.retrieve(first.id).output_text, ANSWER)
    server.client.responses.delete(first.id)
    refused(404, lambda: server.client.responses.retrieve(first.id))
    error = refused(404, lambda: ask(server, "Hello", previous_response_id=first.id))
    equal((error.code, error.param), ("previous_response_not_found", "previous_response_id"))


@check
def response_is_not_stored_if_asked(server):
    response = ask(server, "Hello", store=False)
    equal((response.status, response.model_extra["store"]), ("completed", False))
    refused(404, lambda: server.client.responses.retrieve(response.id))


@check
def input_tokens_are_counted(server):
    count = server.client.responses.input_tokens.count
    counted = count(model=server.scripted_model, input="Hello", instructions="Be brief.")
    equal(counted.object, "response.input_tokens")
    response = ask(server, "Hello", instructions="Be brief.")
    equal(counted.input_tokens, response.usage.input_tokens)
    longer = count(model=server.scripted_model, input="Hello", previous_response_id=response.id)
    expect(longer.input_tokens > counted.input_tokens, f"{longer}")


@check
def text_follows_its_schema(server):
    schema = {
        "type": "object",
        "properties": {"hard": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
        "required": ["hard", "size"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "stone", "schema": schema, "strict": True}}
    create = server.client.responses.create
    options = {"temperature": 0, "max_output_tokens": 100, "text": text}
    response = create(model=server.model, input="Describe a stone.", **options)
    equal(set(json.loads(response.output_text)), {"hard", "size"})
    equal(response.text.format.name, "stone")


@check
def parsed_answer_has_its_type(server):
    class Stone(pydantic.BaseModel):
        hard: bool

    parse = server.client.responses.parse
    options = {"temperature": 0, "max_output_tokens": 60, "text_format": Stone}
    response = parse(model=server.model, input="Is a stone hard?", **options)
    expect(isinstance(response.output_parsed, Stone), f"{response.output}")


@check
def length_makes_it_incomplete(server):
    response = ask(server, "Tell me a long story.", max_output_tokens=20)
    equal((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    equal(response.usage.output_tokens, 20)
    last = list(ask(server, "Tell me a long story.", max_output_tokens=20, stream=True))[-1]
    equal((last.type, last.response.status), ("response.completed", "incomplete"))


@check
def errors_have_their_classes(server):
    error = refused(400, lambda: ask(server, [{"content": "Hello"}]))
    expect(isinstance(error, openai.BadRequestError), type(error).__name__)
    # ollama 15424.
    equal(error.param, "input[0]")
    contains(error.message, "with a `type`")
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    contains(refused(400, lambda: ask(server, image)).message, "needs a model that sees")
    create = server.client.responses.create
    error = refused(404, lambda: create(model="no-such-model", input="Hello"))
    expect(isinstance(error, openai.NotFoundError), type(error).__name__)
    long = "stone " * 40_000
    error = refused(400, lambda: ask(server, long))
    equal(error.code, "context_length_exceeded")
    events = list(ask(server, long, stream=True))
    equal(events[-1].type, "response.failed")
    equal(events[-1].response.error.code, "context_length_exceeded")


@check
def cancelled_stream_frees_its_slot(server):
    whole = ask(server, "Tell me a long story.", max_output_tokens=6000).usage.output_tokens

    async def run():
        async with server.asynchronous() as client:
            stream = await client.responses.create(
                model=server.scripted_model, input="Tell me a long story.", stream=True
            )
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
            await stream.close()

    before = server.predicted_tokens()
    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
    server.wait_until_idle(server.scripted_model)
    drawn = server.predicted_tokens() - before
    expect(drawn < whole, f"{drawn} tokens of {whole} were drawn for a client that had gone")
    equal(ask(server, "Hello").output_text, ANSWER)
