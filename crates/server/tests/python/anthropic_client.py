"""Anthropic's client on /v1/messages: whole answers, streams, tools, errors, cancellation."""

import anthropic

from harness import LIMIT_S, Failed, check, contains, equal, expect

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}},
        "required": ["city"],
    },
}
OSLO = {"city": "Oslo", "unit": "celsius"}


def client(server, **options):
    options = {"api_key": server.key, "max_retries": 0, "timeout": LIMIT_S} | options
    return anthropic.Anthropic(base_url=server.base, **options)


def request(server, text, **options):
    messages = options.pop("messages", [{"role": "user", "content": text}])
    options = {"max_tokens": 12, "extra_body": {"temperature": 0}} | options
    return {"model": server.model, "messages": messages} | options


def scripted(server, text, **options):
    """Request of the model that writes given answers; `None` without one."""
    model = getattr(server, "scripted_model", None)
    options = {"model": model, "tools": [WEATHER], "max_tokens": 800} | options
    return request(server, text, **options) if model else None


def refused(status, call):
    try:
        got = call()
    except anthropic.APIStatusError as error:
        equal(error.status_code, status, "status")
        equal(error.body["type"], "error", "type of the body")
        return error.body["error"]
    raise Failed(f"expected an error with status {status}, got {str(got)[:200]}")


@check
def message_is_answered(server):
    message = client(server).messages.create(**request(server, "Name three colours."))
    equal((message.type, message.role, message.model), ("message", "assistant", server.model))
    expect(message.content[0].type == "text" and message.content[0].text, f"{message.content}")
    expect(message.id.startswith("msg_"), message.id)
    usage = message.usage
    expect(usage.input_tokens + usage.cache_read_input_tokens > 0 and usage.output_tokens > 0, f"{usage}")


@check
def stream_gives_the_whole_message(server):
    body = request(server, "Name three colours.", system=[{"type": "text", "text": "Be brief."}])
    whole = client(server).messages.create(**body)
    with client(server).messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    equal(text, whole.content[0].text)
    equal(streamed.content[0].text, text)
    equal(streamed.stop_reason, whole.stop_reason)
    equal(streamed.usage.output_tokens, whole.usage.output_tokens)


@check
def tokens_are_counted(server):
    body = request(server, "Name three colours.", tools=[WEATHER])
    usage = client(server).messages.create(**body).usage
    del body["max_tokens"], body["extra_body"]
    counted = client(server).messages.count_tokens(**body).input_tokens
    equal(counted, usage.input_tokens + usage.cache_read_input_tokens, "input_tokens")


@check
def beta_headers_and_unknown_fields_pass(server):
    headers = {"anthropic-beta": "interleaved-thinking-2025-05-14,context-1m-2025-08-07"}
    body = request(server, "Hi", metadata={"user_id": "u"}, extra_headers=headers)
    body["extra_body"] = {"temperature": 0, "context_management": {"edits": []}}
    expect(client(server).messages.create(**body).content, "content")


@check
def key_may_be_a_bearer_token(server):
    bearer = client(server, api_key=None, auth_token=server.key)
    expect(bearer.messages.create(**request(server, "Hi")).content, "content")
    wrong = client(server, api_key="wrong")
    error = refused(401, lambda: wrong.messages.create(**request(server, "Hi")))
    equal(error["type"], "authentication_error")


@check
def stop_sequence_ends_the_text(server):
    text = client(server).messages.create(**request(server, "Name three colours.")).content[0].text
    stop = text[2:4]
    body = request(server, "Name three colours.", stop_sequences=[stop])
    message = client(server).messages.create(**body)
    equal((message.stop_reason, message.stop_sequence), ("stop_sequence", stop))


@check
def invalid_requests_are_named(server):
    create = client(server).messages.create
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
    body = request(server, "", messages=[{"role": "user", "content": [image]}])
    contains(refused(400, lambda: create(**body))["message"], "a model that sees")
    error = refused(400, lambda: create(**request(server, "stone " * 40_000)))
    equal(error["type"], "invalid_request_error")
    contains(error["message"], "prompt is too long")


@check
def closed_stream_frees_the_slot(server):
    body = request(server, "Tell a long story.", max_tokens=2000)
    with client(server).messages.stream(**body) as stream:
        next(iter(stream.text_stream))
    server.wait_until_idle()


@check
def call_of_a_tool_is_a_block(server):
    if not (body := scripted(server, "What is the weather?")):
        return
    message = client(server).messages.create(**body)
    equal(message.stop_reason, "tool_use")
    equal([block.type for block in message.content], ["thinking", "tool_use"])
    call = message.content[-1]
    equal((call.name, call.input), ("get_weather", OSLO))
    with client(server).messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    equal([block.type for block in streamed.content], ["thinking", "tool_use"])
    equal((streamed.content[-1].name, streamed.content[-1].input), ("get_weather", OSLO))
    expect(streamed.content[0].signature, "a signature")
    # The answer goes back as it came.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    body["messages"] += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    message = client(server).messages.create(**body)
    equal((message.stop_reason, message.content[-1].text), ("end_turn", "It is 21 degrees in Oslo."))


@check
def parallel_calls_are_blocks_of_their_own(server):
    if not (body := scripted(server, "Do this in parallel.")):
        return
    tool = WEATHER | {"name": "run_code", "input_schema": {"type": "object"}}
    with client(server).messages.stream(**(body | {"tools": [WEATHER, tool]})) as stream:
        message = stream.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    equal([call.name for call in calls], ["get_weather", "run_code", "get_weather"])
    equal(calls[1].input, {"code": 'if (x) { y("}"); }', "path": "C:\\path\\new"})
    equal(len({call.id for call in calls}), 3, "identifiers")
