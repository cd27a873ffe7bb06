"""llama-server's own routes."""

import json

from harness import check, contains, equal, error_shape, expect


def complete(server, prompt="Once upon a time", **options):
    return server.post("/completion", {"prompt": prompt, "n_predict": 8, "temperature": 0} | options)


@check
def completion_has_its_fields(server):
    reply = complete(server)
    equal((reply["tokens_predicted"], reply["stop"]), (8, True))
    equal((reply["stop_type"], reply["truncated"]), ("limit", False))
    expect(reply["content"], "an empty text")
    equal(reply["tokens_evaluated"], len(server.tokenize("Once upon a time", add_special=True)))
    for name in ("index", "id_slot", "model", "generation_settings", "prompt", "tokens_cached"):
        expect(name in reply, f"{name} in {list(reply)}")
    timings = reply["timings"]
    expect(timings["predicted_n"] == 8 and timings["predicted_per_second"] > 0, f"{timings}")


@check
def completion_equals_the_compatible_route(server):
    equal(complete(server)["content"], server.complete(max_tokens=8).choices[0].text)


@check
def completion_streams(server):
    body = {"model": server.model, "prompt": "Once upon a time", "n_predict": 8, "temperature": 0}
    events = []
    with server.http.stream("POST", "/completion", json=body | {"stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
    equal([event["stop"] for event in events], [False] * (len(events) - 1) + [True], "stop")
    equal("".join(event["content"] for event in events), complete(server)["content"])


@check
def completion_returns_tokens_and_probabilities(server):
    reply = complete(server, return_tokens=True, n_probs=3)
    equal(len(reply["tokens"]), 8, "tokens")
    equal(server.post("/detokenize", {"tokens": reply["tokens"]})["content"], reply["content"])
    probabilities = reply["completion_probabilities"]
    equal([entry["id"] for entry in probabilities], reply["tokens"], "ids")
    equal(len(probabilities[0]["top_logprobs"]), 3, "top_logprobs")


@check
def completion_stops_at_a_word(server):
    whole = complete(server)["content"]
    stop = whole[len(whole) // 2 :][:3]
    reply = complete(server, stop=[stop])
    equal((reply["stop_type"], reply["stopping_word"]), ("word", stop))
    equal(reply["content"], whole[: whole.index(stop)])


@check
def completion_follows_a_schema(server):
    reply = complete(server, "A stone:", n_predict=40, json_schema={"enum": ["granite", "basalt"]})
    expect(json.loads(reply["content"]) in ("granite", "basalt"), reply["content"])


@check
def completion_takes_mixed_prompts(server):
    tokens = server.tokenize(" upon a time")
    reply = complete(server, ["Once", *tokens])
    equal(reply["content"], complete(server)["content"])


@check
def completion_bans_by_logit_bias(server):
    first = complete(server, return_tokens=True, n_predict=1)["tokens"][0]
    reply = complete(server, return_tokens=True, logit_bias=[[first, False]])
    expect(first not in reply["tokens"], f"token {first} was drawn")


@check
def completion_keeps_the_named_fields(server):
    reply = complete(server, response_fields=["content", "timings/predicted_n"])
    equal(set(reply), {"content", "timings/predicted_n"}, "fields")


@check
def prompt_is_needed(server):
    error_shape(server.native("/completion", {"n_predict": 1}), 400)


@check
def tokens_spell_the_text(server):
    text = "Stones are hard – 石 é."
    equal(server.post("/detokenize", {"tokens": server.tokenize(text)})["content"], text)


@check
def pieces_are_given_with_tokens(server):
    tokens = server.tokenize("Hello world", with_pieces=True)
    equal("".join(token["piece"] for token in tokens), "Hello world")
    equal([token["id"] for token in tokens], server.tokenize("Hello world"))


@check
def pieces_of_a_cut_character_are_bytes(server):
    pieces = [token["piece"] for token in server.tokenize("🪨", with_pieces=True)]
    as_bytes = b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in pieces)
    equal(as_bytes.decode(), "🪨")
    expect(any(isinstance(piece, list) for piece in pieces), f"{pieces}")


@check
def template_is_applied(server):
    messages = [{"role": "user", "content": "Hello there"}]
    prompt = server.post("/apply-template", {"messages": messages})["prompt"]
    contains(prompt, "Hello there", "prompt")
    chat = server.chat(messages=messages).usage.prompt_tokens
    equal(len(server.tokenize(prompt, add_special=True)), chat, "tokens")


@check
def template_ends_in_the_prefilled_answer(server):
    messages = [
        {"role": "user", "content": "Capital of France?"},
        {"role": "assistant", "content": "It is the city of"},
    ]
    prompt = server.post("/apply-template", {"messages": messages})["prompt"]
    expect(prompt.endswith("It is the city of"), prompt)


@check
def infill_needs_its_tokens(server):
    body = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n", "n_predict": 8}
    response = server.native("/infill", body)
    # A model without tokens for infilling is refused by name.
    if response.status_code == 200:
        expect(isinstance(response.json()["content"], str), response.text)
    else:
        equal(error_shape(response, 501)["type"], "not_supported_error")


@check
def props_describe_the_server(server):
    props = server.get("/props")
    for name in ("default_generation_settings", "total_slots", "model_path", "chat_template"):
        expect(name in props, f"{name} in {list(props)}")
    expect(props["total_slots"] > 0, f"{props['total_slots']} slots")
    expect(props["default_generation_settings"]["n_ctx"] > 0, "n_ctx")
    contains(props["chat_template"], "messages", "chat_template")


@check
def slots_are_listed(server):
    slots = server.get("/slots")
    equal(len(slots), server.get("/props")["total_slots"], "slots")
    for slot in slots:
        expect({"id", "n_ctx", "is_processing"} <= set(slot), f"{list(slot)}")


@check
def idle_slot_is_reported(server):
    server.wait_until_idle()
    query = server.query | {"fail_on_no_slot": "1"}
    equal(server.http.get("/slots", params=query).status_code, 200, "status")


def metric(text, name):
    lines = [line for line in text.splitlines() if line.split(" ")[0].split("{")[0] == name]
    expect(lines, f"no metric {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@check
def metrics_count_tokens(server):
    server.wait_until_idle()
    before = server.http.get("/metrics")
    equal(before.status_code, 200, "status")
    contains(before.headers["content-type"], "text", "content-type")
    timings = complete(server, "Metrics count this prompt.")["timings"]
    server.wait_until_idle()
    after = server.http.get("/metrics").text
    for name, expected in (
        ("llamacpp:prompt_tokens_total", timings["prompt_n"]),
        ("llamacpp:tokens_predicted_total", timings["predicted_n"]),
    ):
        equal(metric(after, name) - metric(before.text, name), expected, name)


@check
def metrics_have_gauges(server):
    text = server.http.get("/metrics").text
    for name in ("requests_processing", "requests_deferred", "prompt_tokens_seconds"):
        expect(metric(text, f"llamacpp:{name}") >= 0, name)


@check
def adapters_are_listed(server):
    equal(server.get("/lora-adapters"), [], "adapters")


@check
def slot_is_saved_and_restored(server):
    prompt = "Keep this text: " + "granite basalt marble slate " * 8
    slot = complete(server, prompt, id_slot=0)["id_slot"]
    server.wait_until_idle()
    saved = server.post(f"/slots/{slot}", {"filename": "client.bin"}, action="save")
    equal((saved["id_slot"], saved["filename"]), (slot, "client.bin"))
    expect(saved["n_saved"] > 32 and saved["n_written"] > 0, f"{saved}")
    erased = server.post(f"/slots/{slot}", {}, action="erase")
    expect(erased["n_erased"] > 0, f"{erased}")
    restored = server.post(f"/slots/{slot}", {"filename": "client.bin"}, action="restore")
    equal(restored["n_restored"], saved["n_saved"])


@check
def slot_files_stay_in_their_folder(server):
    body = {"filename": "../outside.bin"}
    error_shape(server.native("/slots/0", body, action="save"), 400)
