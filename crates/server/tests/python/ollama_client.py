"""Ollama's client on /api: chats, completions, embeddings, models, tools, errors, cancellation."""

import ollama

from harness import LIMIT_S, Failed, check, contains, equal, expect

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            "required": ["city"],
        },
    },
}
OSLO = {"city": "Oslo", "unit": "celsius"}
OPTIONS = {"temperature": 0, "num_predict": 12}


def client(server, key=None):
    headers = {"Authorization": f"Bearer {key or server.key}"}
    return ollama.Client(host=server.base, headers=headers, timeout=LIMIT_S)


def chat(server, text="Name three colours.", **options):
    options = {"model": server.model, "options": OPTIONS} | options
    messages = options.pop("messages", [{"role": "user", "content": text}])
    return client(server).chat(messages=messages, **options)


def refused(status, call):
    try:
        got = call()
    except ollama.ResponseError as error:
        equal(error.status_code, status, "status")
        return error.error
    raise Failed(f"expected an error with status {status}, got {str(got)[:200]}")


@check
def chat_is_answered(server):
    answer = chat(server)
    equal((answer.done, answer.model), (True, server.model))
    expect(answer.message.content and answer.eval_count > 0 and answer.total_duration > 0, f"{answer}")
    parts = list(chat(server, stream=True))
    equal("".join(part.message.content for part in parts), answer.message.content)
    equal([part.done for part in parts], [False] * (len(parts) - 1) + [True], "done")
    expect(parts[-1].done_reason in ("stop", "length"), f"{parts[-1]}")


@check
def completion_is_answered(server):
    generate = client(server).generate
    options = {"model": server.model, "options": OPTIONS}
    whole = generate(prompt="Name three colours.", system="Be brief.", **options)
    parts = list(generate(prompt="Name three colours.", system="Be brief.", stream=True, **options))
    equal("".join(part.response for part in parts), whole.response)
    expect(whole.context and parts[-1].context == whole.context, "context")
    raw = generate(prompt="Once upon a time", raw=True, **options)
    expect(raw.response and not raw.context, f"{raw}")


@check
def request_of_home_assistant_is_answered(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    options = OPTIONS | {"num_ctx": 8192.0, "num_predict": 40.0}
    for keep_alive in (-1, "300s"):
        answer = chat(server, options=options, keep_alive=keep_alive, think=False, format=schema)
        contains(answer.message.content, '"a"')


@check
def models_are_listed_and_shown(server):
    listed = client(server).list().models
    expect(server.model in [model.model for model in listed], f"{listed}")
    shown = client(server).show(server.model)
    arch = shown.modelinfo["general.architecture"]
    expect(shown.modelinfo[f"{arch}.context_length"] > 0, f"{shown.modelinfo}")
    expect("completion" in shown.capabilities, f"{shown.capabilities}")
    version = server.http.get("/api/version").json()["version"]
    expect([int(part) for part in version.split(".")] >= [0, 12, 0], version)
    equal(server.http.get("/").text, "Ollama is running")


@check
def loaded_models_are_listed(server):
    client(server).chat(model=server.model, messages=[], keep_alive=-1)
    running = client(server).ps().models
    expect(server.model in [model.model for model in running], f"{running}")


@check
def texts_are_embedded(server):
    answer = client(server).embed(model=server.model, input=["A dog barks.", "A cat sleeps."])
    equal(len(answer.embeddings), 2)
    old = client(server).embeddings(model=server.model, prompt="A dog barks.")
    close = [abs(a - b) < 1e-4 for a, b in zip(old.embedding, answer.embeddings[0], strict=True)]
    expect(all(close), "vectors of both routes")


@check
def errors_are_texts(server):
    contains(refused(404, lambda: chat(server, model="no-such-model")), "not found")
    image = {"role": "user", "content": "What is it?", "images": [b"aa"]}
    contains(refused(400, lambda: chat(server, messages=[image])), "a model that sees")
    contains(refused(400, lambda: chat(server, "stone " * 40_000)), "context")
    contains(refused(403, lambda: client(server).pull("base")), "--manage-models")
    refused(401, lambda: client(server, "wrong").list())


@check
def closed_stream_frees_the_slot(server):
    options = OPTIONS | {"num_predict": 2000}
    stream = chat(server, "Tell a long story.", options=options, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_until_idle()


@check
def call_of_a_tool_has_an_object(server):
    model = getattr(server, "scripted_model", None)
    if not model:
        return
    options = {"model": model, "tools": [TOOL], "options": OPTIONS | {"num_predict": 800}}
    answer = chat(server, "What is the weather?", **options)
    [call] = answer.message.tool_calls
    equal((call.function.name, call.function.arguments), ("get_weather", OSLO))
    contains(answer.message.thinking, "The tool knows the weather.")
    parts = list(chat(server, "What is the weather?", stream=True, **options))
    calls = [call for part in parts for call in part.message.tool_calls or []]
    equal([(call.function.name, call.function.arguments) for call in calls], [("get_weather", OSLO)])
    messages = [
        {"role": "user", "content": "What is the weather?"},
        answer.message,
        {"role": "tool", "tool_name": "get_weather", "content": "21 degrees"},
    ]
    answer = chat(server, messages=messages, **options)
    equal(answer.message.content, "It is 21 degrees in Oslo.")
