"""Tool calls and reasoning of /v1/chat/completions, written by the scripted model."""

import asyncio
import json

import openai
import pydantic

from harness import LIMIT_S, check, contains, equal, expect, refused


def function(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TEXT = {"type": "string"}
WEATHER = function("get_weather", city=TEXT)
WEATHER["function"]["parameters"]["properties"]["unit"] = {"enum": ["celsius", "kelvin"]}
CITY = function("get_city")
CODE = function("run_code", code=TEXT, path=TEXT)
TOOLS = [WEATHER, CITY, CODE]
OSLO = {"city": "Oslo", "unit": "celsius"}
# Quotes, braces and backslashes in arguments (ollama 15254, 16937), text of several bytes.
PARALLEL = [
    ("get_weather", {"city": "Oslo"}),
    ("run_code", {"code": 'if (x) { y("}"); }', "path": "C:\\path\\new"}),
    ("get_weather", {"city": "Tromsø 石"}),
]


def ask(server, text, **options):
    messages = options.pop("messages", [{"role": "user", "content": text}])
    options = {"tools": TOOLS, "max_tokens": 800, "temperature": 0} | options
    create = server.client.chat.completions.create
    return create(model=server.scripted_model, messages=messages, **options)


def calls_of(answer):
    calls = answer.choices[0].message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def lines_of(server, text, **options):
    """The JSON objects of a stream as they were sent."""
    messages = [{"role": "user", "content": text}]
    body = {"model": server.scripted_model, "messages": messages, "tools": TOOLS, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body | options) as response:
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    expect(all(line.startswith("data: ") for line in lines), f"{lines[:5]}")
    equal(lines.pop(), "data: [DONE]", "last line")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def gathered(stream):
    """Content, reasoning, calls by index and the reason of the end of a stream of OpenAI's client."""
    content, reasoning, calls, end = "", "", {}, None
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content") or ""
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"ids": [], "names": [], "arguments": ""})
                call["ids"] += [part.id] if part.id else []
                call["names"] += [part.function.name] if part.function.name else []
                call["arguments"] += part.function.arguments or ""
            end = choice.finish_reason or end
    return content, reasoning, calls, end


@check
def call_has_its_fields(server):
    answer = ask(server, "What is the weather?")
    choice = answer.choices[0]
    equal(choice.finish_reason, "tool_calls")
    equal(calls_of(answer), [("get_weather", OSLO)])
    equal((choice.message.role, choice.message.content), ("assistant", None))
    [call] = choice.message.tool_calls
    equal(call.type, "function")
    expect(call.id, "a call without an id")


@check
def reasoning_is_no_content(server):
    answer = ask(server, "What is the weather?")
    message, usage = answer.choices[0].message, answer.usage
    n = usage.completion_tokens_details.reasoning_tokens
    # The call is longer than the reasoning.
    expect(0 < 2 * n < usage.completion_tokens, f"{usage}")
    equal(message.model_extra["reasoning_content"].strip(), "The tool knows the weather.")
    answer = ask(server, "Think of a stone.", tools=openai.NOT_GIVEN).choices[0]
    equal(answer.message.content, "Granite is a hard stone.")
    equal(answer.message.model_extra["reasoning_content"].strip(), "A stone is asked for. Granite fits.")
    equal(answer.finish_reason, "stop")


@check
def reasoning_streams_before_content(server):
    stream = ask(server, "Think of a stone.", stream=True)
    order = []
    for chunk in stream:
        for choice in chunk.choices:
            extra = choice.delta.model_extra or {}
            order += ["reasoning"] if extra.get("reasoning_content") else []
            order += ["content"] if choice.delta.content else []
    expect("reasoning" in order and "content" in order, f"{order}")
    equal(order, sorted(order, reverse=True), "order")


@check
def thinking_is_turned_off(server):
    # Both ways of clients: the variable of the template and OpenAI's field.
    for options in ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, {"reasoning_effort": "none"}):
        message = ask(server, "Think of a stone.", **options).choices[0].message
        equal(message.content, "Granite is a hard stone.", str(options))
        expect(not (message.model_extra or {}).get("reasoning_content"), f"{message}")


@check
def text_before_a_call_is_content(server):
    for stream in (False, True):
        answer = ask(server, "A forecast, please.", stream=stream)
        if stream:
            content, _, calls, end = gathered(answer)
            equal([json.loads(call["arguments"]) for call in calls.values()], [OSLO])
        else:
            content, end = answer.choices[0].message.content, answer.choices[0].finish_reason
            equal(calls_of(answer), [("get_weather", OSLO)])
        equal((content.strip(), end), ("I look it up.", "tool_calls"))


@check
def parallel_calls_are_whole(server):
    answer = ask(server, "Do this in parallel.")
    equal(calls_of(answer), PARALLEL)
    ids = [call.id for call in answer.choices[0].message.tool_calls]
    equal(len(set(ids)), 3, f"ids of {ids}")


@check
def parallel_calls_stream_with_their_index(server):
    # ollama 15467, llama.cpp 22072, oh-my-pi 1970; litellm 20480: a name and an id once.
    content, _, calls, end = gathered(ask(server, "Do this in parallel.", stream=True))
    equal((content.strip(), end), ("", "tool_calls"))
    equal(list(calls), [0, 1, 2], "indices")
    got = [(*call["names"], json.loads(call["arguments"])) for call in calls.values()]
    equal(got, PARALLEL)
    equal([len(call["ids"]) for call in calls.values()], [1, 1, 1], "ids of a call")
    equal(len({call["ids"][0] for call in calls.values()}), 3, "ids")


@check
def arguments_come_in_fragments(server):
    chunks = lines_of(server, "Do this in parallel.")
    parts = [
        part
        for chunk in chunks
        for choice in chunk["choices"]
        for part in choice["delta"].get("tool_calls", [])
        if part["index"] == 1
    ]
    expect(len(parts) > 3, f"{parts}")
    first, others = parts[0], parts[1:]
    equal((first["type"], first["function"]["name"]), ("function", "run_code"))
    expect(first["id"], f"{first}")
    for part in others:
        equal(set(part), {"index", "function"}, "fields of a fragment")
        equal(set(part["function"]), {"arguments"}, "fields of its function")


@check
def stream_has_the_order_of_openai(server):
    # ollama 17485.
    chunks = lines_of(server, "What is the weather?", stream_options={"include_usage": True})
    *parts, usage = chunks
    equal(usage["choices"], [], "choices of the usage")
    total = usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    equal(usage["usage"]["total_tokens"], total)
    expect(all(chunk.get("usage") is None for chunk in parts), "a usage before the end")
    equal(len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}), 1, "heads")
    deltas = [chunk["choices"][0] for chunk in parts]
    equal(deltas[0]["delta"]["role"], "assistant")
    expect(all("role" not in choice["delta"] for choice in deltas[1:]), "a second role")
    equal((deltas[-1]["delta"], deltas[-1]["finish_reason"]), ({}, "tool_calls"), "end")
    expect(all(choice["finish_reason"] is None for choice in deltas[:-1]), "an early end")
    for chunk in chunks:
        # Zed reads every line as one of these.
        expect("choices" in chunk and chunk["object"] == "chat.completion.chunk", f"{chunk}")


@check
def length_comes_before_tool_calls(server):
    answer = ask(server, "Do this in parallel.", max_tokens=30)
    equal(answer.choices[0].finish_reason, "length")


@check
def results_are_in_the_next_prompt(server):
    question = {"role": "user", "content": "What is the weather?"}
    first = ask(server, "", messages=[question]).choices[0].message
    # As the client writes it, with arguments as a string: LocalAI 10256.
    call = first.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "21 degrees"}
    answer = ask(server, "", messages=[question, call, result]).choices[0]
    equal((answer.message.content, answer.finish_reason), ("It is 21 degrees in Oslo.", "stop"))
    parts = result | {"content": [{"type": "text", "text": "21 degrees"}]}
    answer = ask(server, "", messages=[question, call, parts]).choices[0]
    equal(answer.message.content, "It is 21 degrees in Oslo.", "result in parts")


@check
def choice_none_calls_nothing(server):
    answer = ask(server, "What is the weather?", tool_choice="none").choices[0]
    expect(not answer.message.tool_calls, f"{answer.message}")
    expect("<tool_call>" not in (answer.message.content or ""), f"{answer.message.content!r}")


@check
def choice_required_calls_a_tool(server):
    # A question that the model answers with text.
    for stream in (False, True):
        answer = ask(server, "Hello", tool_choice="required", stream=stream)
        if stream:
            _, _, calls, end = gathered(answer)
            names = [name for call in calls.values() for name in call["names"]]
            values = [json.loads(call["arguments"]) for call in calls.values()]
        else:
            end = answer.choices[0].finish_reason
            names, values = zip(*calls_of(answer))
        expect(names and set(names) <= {tool["function"]["name"] for tool in TOOLS}, f"{names}")
        expect(all(isinstance(value, dict) for value in values), f"{values}")
        equal(end, "tool_calls")


@check
def chosen_function_is_called(server):
    choice = {"type": "function", "function": {"name": "get_city"}}
    answer = ask(server, "What is the weather?", tool_choice=choice)
    equal({name for name, _ in calls_of(answer)}, {"get_city"})


@check
def serial_calls_are_one(server):
    answer = ask(server, "Do this in parallel.", parallel_tool_calls=False)
    equal(len(calls_of(answer)), 1, "calls")


@check
def typed_arguments_are_parsed(server):
    class GetWeather(pydantic.BaseModel):
        city: str
        unit: str | None = None

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    tool["function"].pop("strict")
    create = server.client.chat.completions.create
    answer = create(
        model=server.scripted_model,
        messages=[{"role": "user", "content": "What is the weather?"}],
        tools=[tool],
        temperature=0,
    )
    [call] = answer.choices[0].message.tool_calls
    equal(GetWeather.model_validate_json(call.function.arguments), GetWeather(**OSLO))


@check
def missing_end_tag_is_a_call(server):
    # ollama 17250.
    for stream in (False, True):
        answer = ask(server, "There is no end.", stream=stream)
        if stream:
            _, _, calls, end = gathered(answer)
            equal(json.loads(calls[0]["arguments"]), {"city": "Bergen"})
            equal(end, "tool_calls")
        else:
            equal(calls_of(answer), [("get_weather", {"city": "Bergen"})])


@check
def answer_is_calls_or_the_json_of_a_schema(server):
    # OpenAI allows both in a request, and agents with typed answers send both.
    sky = {"sky": {"enum": ["blue", "grey"]}}
    schema = {"type": "object", "properties": sky, "required": ["sky"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
    answer = ask(server, "Describe the sky as JSON.", response_format=form).choices[0]
    equal((json.loads(answer.message.content), answer.finish_reason), ({"sky": "blue"}, "stop"))
    expect(not answer.message.tool_calls, f"{answer.message}")
    equal(calls_of(ask(server, "What is the weather?", response_format=form)), [("get_weather", OSLO)])
    # The model would answer with prose.
    answer = ask(server, "Hello", response_format=form, max_tokens=100).choices[0].message
    expect(answer.tool_calls or set(json.loads(answer.content)) == {"sky"}, f"{answer}")
    error = refused(400, lambda: ask(server, "Hello", extra_body={"grammar": 'root ::= "a"'}))
    contains(error.message, "grammar")


@check
def half_a_call_is_never_passed_on(server):
    # ollama 17250, 17883: a whole call, an error, or the end by length; the next request works.
    for stream in (False, True):
        try:
            answer = ask(server, "This is truncated.", stream=stream, max_tokens=60)
            if stream:
                _, _, calls, end = gathered(answer)
                texts = [call["arguments"] for call in calls.values()]
            else:
                end = answer.choices[0].finish_reason
                texts = [call.function.arguments for call in answer.choices[0].message.tool_calls or []]
        except openai.APIError as error:
            expect(error.message, "an error without a message")
            continue
        expect(end in ("length", "tool_calls"), f"finish_reason {end}")
        if end == "tool_calls":
            expect(texts and all(isinstance(json.loads(text), dict) for text in texts), f"{texts}")
    server.wait_until_idle(server.scripted_model)
    equal(ask(server, "Hello").choices[0].message.content, "Granite is a hard stone.")


@check
def errors_have_their_classes(server):
    bad = [{"type": "poem"}]
    error = refused(400, lambda: ask(server, "Hello", tools=bad))
    expect(isinstance(error, openai.BadRequestError), type(error).__name__)
    contains(error.message, "tools[0].type")
    choice = {"type": "function", "function": {"name": "no_such"}}
    contains(refused(400, lambda: ask(server, "Hello", tool_choice=choice)).message, "tool_choice")
    twice = [WEATHER, WEATHER]
    contains(refused(400, lambda: ask(server, "Hello", tools=twice)).message, "get_weather")
    messages = [{"role": "tool", "content": "21"}]
    refused(400, lambda: ask(server, "", messages=messages, tools="poem"))
    create = server.client.chat.completions.create
    messages = [{"role": "user", "content": "Hello"}]
    error = refused(404, lambda: create(model="no-such-model", messages=messages))
    expect(isinstance(error, openai.NotFoundError), type(error).__name__)
    # A short answer may arrive in a millisecond.
    messages = [{"role": "user", "content": "Tell me a long story."}]
    with server.openai(server.key, timeout=0.001) as client:
        try:
            client.chat.completions.create(model=server.scripted_model, messages=messages, max_tokens=4000)
        except openai.APITimeoutError:
            return
    expect(False, "no timeout")


@check
def cancelled_stream_frees_its_slot(server):
    whole = ask(server, "Tell me a long story.", max_tokens=6000).usage.completion_tokens

    async def run():
        async with server.asynchronous() as client:
            stream = await client.chat.completions.create(
                model=server.scripted_model,
                messages=[{"role": "user", "content": "Tell me a long story."}],
                tools=TOOLS,
                stream=True,
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    break
            await stream.close()

    before = server.predicted_tokens()
    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
    server.wait_until_idle(server.scripted_model)
    drawn = server.predicted_tokens() - before
    expect(drawn < whole, f"{drawn} tokens of {whole} were drawn for a client that had gone")
    equal(ask(server, "Hello").choices[0].message.content, "Granite is a hard stone.")
