"""Keys, refused requests, timeouts, clients that go away, many clients at a time."""

import asyncio

import openai

from harness import Failed, check, contains, equal, error_shape, expect, refused

LONG = "stone " * 40_000


@check
def models_are_listed(server):
    models = {model.id: model for model in server.client.models.list()}
    expect(server.model in models, f"{server.model} in {list(models)}")
    equal(models[server.model].object, "model")
    if server.audio_model:
        expect(server.audio_model in models, f"{server.audio_model} in {list(models)}")


@check
def wrong_key_is_refused(server):
    error = refused(401, lambda: server.openai("wrong").models.list())
    expect(isinstance(error, openai.AuthenticationError), type(error).__name__)
    equal(error.body["type"], "authentication_error", "type")


@check
def wrong_key_is_refused_for_chat(server):
    client = server.openai("wrong")
    messages = [{"role": "user", "content": "Hi"}]
    refused(401, lambda: client.chat.completions.create(model=server.model, messages=messages))


@check
def missing_key_is_refused(server):
    with server.plain({}) as http:
        error = error_shape(http.post("/completion", json={"prompt": "Hi"}), 401)
        equal(error["type"], "authentication_error", "type")


@check
def key_may_stand_in_x_api_key(server):
    with server.plain({"X-Api-Key": server.key}) as http:
        equal(http.get("/v1/models").status_code, 200, "status")
    with server.plain({"X-Api-Key": "wrong"}) as http:
        equal(http.get("/v1/models").status_code, 401, "status")


@check
def health_needs_no_key(server):
    with server.plain({}) as http:
        for path in ("/health", "/v1/health"):
            response = http.get(path)
            equal((response.status_code, response.json()["status"]), (200, "ok"), path)


@check
def model_is_retrieved(server):
    equal(server.client.models.retrieve(server.model).id, server.model)


@check
def unknown_model_is_not_found(server):
    error = refused(404, lambda: server.client.models.retrieve("no-such-model"))
    contains(error.message, "no-such-model", "message")


@check
def unknown_name_means_the_only_language_model(server):
    messages = [{"role": "user", "content": "Hi"}]
    create = server.client.chat.completions.create
    ask = lambda: create(model="gpt-4o", messages=messages, max_tokens=2)
    if server.scripted_model:
        # One of two models.
        error = refused(404, ask)
        for name in (server.model, server.scripted_model):
            contains(error.message, name, "message")
    else:
        expect(ask().choices, "choices")


@check
def speech_model_does_not_chat(server):
    # Without a speech model its name is any name.
    if server.audio_model:
        messages = [{"role": "user", "content": "Hi"}]
        create = server.client.chat.completions.create
        refused((400, 404), lambda: create(model=server.audio_model, messages=messages))


@check
def unknown_route_is_not_found(server):
    equal(error_shape(server.http.get("/v1/no-such-route"), 404)["type"], "not_found_error")


@check
def body_must_be_json(server):
    response = server.http.post("/v1/chat/completions", content=b'{"messages": [')
    equal(error_shape(response, 400)["type"], "invalid_request_error")


@check
def messages_are_needed(server):
    error = error_shape(server.http.post("/v1/chat/completions", json={"model": server.model}), 400)
    contains(error["message"], "messages", "message")


@check
def messages_must_be_an_array(server):
    body = {"model": server.model, "messages": "Hi"}
    error_shape(server.http.post("/v1/chat/completions", json=body), 400)


@check
def prompt_is_needed(server):
    error = error_shape(server.http.post("/v1/completions", json={"model": server.model}), 400)
    contains(error["message"], "prompt", "message")


@check
def max_tokens_must_be_a_number(server):
    error = refused(400, lambda: server.chat(max_tokens="many"))
    equal(error.body["type"], "invalid_request_error", "type")


@check
def temperature_must_be_a_number(server):
    refused(400, lambda: server.chat(temperature="hot"))


@check
def stop_must_be_text(server):
    refused(400, lambda: server.chat(stop={"a": 1}))


@check
def unknown_fields_are_ignored(server):
    expect(server.chat(extra_body={"no_such_field": [1, {"a": 2}]}).choices, "choices")


@check
def long_prompt_is_refused_with_counts(server):
    error = refused(400, lambda: server.chat(LONG))
    equal(error.body["type"], "exceed_context_size_error", "type")
    expect(error.body["n_prompt_tokens"] >= 40_000, f"{error.body}")
    expect(0 < error.body["n_ctx"] < error.body["n_prompt_tokens"], f"{error.body}")
    contains(error.message, "context", "message")


@check
def long_prompt_of_a_stream_is_refused_before_it(server):
    refused(400, lambda: server.chat(LONG, stream=True))


@check
def long_text_completion_is_refused(server):
    equal(refused(400, lambda: server.complete(LONG)).body["type"], "exceed_context_size_error")


def endless(server, **options):
    """A request that takes far longer than a test waits."""
    return server.chat("Count.", max_tokens=100_000, extra_body={"ignore_eos": True}, **options)


@check
def client_timeout_ends_the_request(server):
    try:
        endless(server, timeout=0.3)
    except openai.APITimeoutError:
        server.wait_until_idle()
        return
    raise Failed("expected a timeout")


@check
def closed_stream_ends_the_request(server):
    stream = endless(server, stream=True)
    for n, _ in enumerate(stream):
        if n == 3:
            break
    stream.close()
    server.wait_until_idle()


@check
def server_answers_after_many_closed_streams(server):
    expected = server.chat().choices[0].message.content

    async def abort(client, n_chunks):
        stream = await client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": f"Count from {n_chunks}."}],
            stream=True,
            max_tokens=100_000,
            extra_body={"ignore_eos": True},
        )
        n = 0
        async for _ in stream:
            n += 1
            if n > n_chunks:
                break
        await stream.close()

    async def run():
        async with server.asynchronous() as client:
            await asyncio.gather(*(abort(client, n) for n in range(8)))

    asyncio.run(run())
    server.wait_until_idle()
    equal(server.chat().choices[0].message.content, expected)


PROMPTS = [
    "Name three colours.",
    "What is granite?",
    "Tell me about the sea.",
    "Who was Ada Lovelace?",
    "What is two plus two?",
    "Write a short greeting.",
    "Why is the sky blue?",
    "List some animals.",
]


@check
def texts_in_a_batch_equal_those_alone(server):
    alone = [server.chat(text, max_tokens=24).choices[0].message.content for text in PROMPTS]

    async def answer(client, text):
        reply = await client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": text}],
            temperature=0,
            max_tokens=24,
        )
        return reply.choices[0].message.content

    async def run():
        async with server.asynchronous() as client:
            return await asyncio.gather(*(answer(client, text) for text in PROMPTS))

    equal(asyncio.run(run()), alone)


@check
def streams_at_a_time_are_whole(server):
    async def read(client, text):
        stream = await client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": text}],
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        return [chunk async for chunk in stream]

    async def run():
        async with server.asynchronous() as client:
            return await asyncio.gather(*(read(client, text) for text in PROMPTS * 2))

    for chunks in asyncio.run(run()):
        equal(chunks[-1].usage.completion_tokens, 16)
        equal(len({chunk.id for chunk in chunks}), 1, "ids of a stream")
