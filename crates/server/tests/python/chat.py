"""/v1/chat/completions: answers, sampling, structured output, probabilities, streams."""

import contextlib
import io
import json
import math
import pathlib
import re
import typing

import pydantic

from harness import check, contains, equal, expect, refused

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


GUIDE = pathlib.Path(__file__).resolve().parents[4] / "docs/guide/serve.md"


def text_of(answer):
    return answer.choices[0].message.content


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}


def joined(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@check
def answer_has_shape(server):
    answer = server.chat()
    expect(answer.id.startswith("chatcmpl-"), f"id {answer.id}")
    equal(answer.object, "chat.completion", "object")
    expect(answer.created > 1_700_000_000, f"created {answer.created}")
    equal(len(answer.choices), 1, "choices")
    choice = answer.choices[0]
    equal((choice.index, choice.message.role), (0, "assistant"))
    expect(choice.message.content, "an empty answer")
    expect(choice.finish_reason in ("stop", "length"), f"finish_reason {choice.finish_reason}")


@check
def usage_adds_up(server):
    usage = server.chat().usage
    expect(usage.prompt_tokens > 0 and usage.completion_tokens > 0, f"{usage}")
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")
    expect(usage.prompt_tokens_details.cached_tokens >= 0, f"{usage}")


@check
def timings_are_finite(server):
    timings = server.chat().model_extra["timings"]
    for name in ("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms"):
        expect(math.isfinite(timings[name]) and timings[name] >= 0, f"{name} in {timings}")


@check
def cached_tokens_are_counted(server):
    text = "Count these stones: " + " ".join(f"stone {n}," for n in range(60))
    first = server.chat(text, max_tokens=2).usage
    again = server.chat(text, max_tokens=2).usage.prompt_tokens_details.cached_tokens
    expect(again > first.prompt_tokens // 2, f"{again} cached tokens of {first.prompt_tokens}")
    expect(again < first.prompt_tokens, "the last token of a prompt is always computed")


@check
def greedy_answers_repeat(server):
    equal(text_of(server.chat()), text_of(server.chat()))


@check
def system_message_is_in_the_prompt(server):
    user = [{"role": "user", "content": "Hello"}]
    system = [{"role": "system", "content": "You are a pirate who likes short words." * 3}]
    without = server.chat(messages=user).usage.prompt_tokens
    with_it = server.chat(messages=system + user).usage.prompt_tokens
    expect(with_it > without, f"{with_it} tokens with a system message, {without} without")


@check
def developer_role_is_a_system_message(server):
    user = [{"role": "user", "content": "Hello"}]
    as_role = lambda role: text_of(server.chat(messages=[{"role": role, "content": "Be brief."}] + user))
    equal(as_role("developer"), as_role("system"))


@check
def content_parts_are_joined(server):
    parts = [{"type": "text", "text": "Name three colours."}]
    equal(text_of(server.chat(messages=[{"role": "user", "content": parts}])), text_of(server.chat()))


@check
def earlier_turns_are_in_the_prompt(server):
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    whole, last = server.chat(messages=messages), server.chat(messages=messages[2:])
    expect(whole.usage.prompt_tokens > last.usage.prompt_tokens + 8, f"{whole.usage}, {last.usage}")
    expect(text_of(whole) != text_of(last), f"both answers are {text_of(last)!r}")


@check
def last_assistant_message_is_prefilled(server):
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is the city of"},
    ]
    contains(text_of(server.chat(messages=messages, max_tokens=8)), "paris")


@check
def max_tokens_ends_the_answer(server):
    answer = server.chat("Count to one hundred.", max_tokens=5)
    equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (5, "length"))


@check
def max_completion_tokens_ends_the_answer(server):
    answer = server.client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Count to one hundred."}],
        max_completion_tokens=4,
        temperature=0,
    )
    equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (4, "length"))


@check
def stop_string_ends_the_answer(server):
    whole = text_of(server.chat(max_tokens=24))
    stop = whole[len(whole) // 2 :][:4]
    answer = server.chat(max_tokens=24, stop=stop)
    equal(text_of(answer), whole[: whole.index(stop)])
    equal(answer.choices[0].finish_reason, "stop")


@check
def first_of_several_stop_strings_ends_the_answer(server):
    whole = text_of(server.chat(max_tokens=24))
    stops = ["~never~", whole[len(whole) // 2 :][:4], whole[len(whole) // 4 :][:4]]
    first = min(whole.index(stop) for stop in stops[1:])
    equal(text_of(server.chat(max_tokens=24, stop=stops)), whole[:first])


@check
def seed_fixes_the_sample(server):
    sample = lambda seed: text_of(server.chat("Write a line.", temperature=1.0, seed=seed))
    equal(sample(42), sample(42))


@check
def other_seeds_sample_other_texts(server):
    sample = lambda seed: text_of(server.chat("Write a line.", temperature=1.5, seed=seed))
    expect(len({sample(seed) for seed in range(1, 5)}) > 1, "four seeds gave one text")


@check
def top_k_of_one_is_greedy(server):
    sample = server.chat(temperature=1.0, seed=3, extra_body={"top_k": 1})
    equal(text_of(sample), text_of(server.chat()))


@check
def small_top_p_is_greedy(server):
    equal(text_of(server.chat(temperature=1.0, seed=3, top_p=1e-6)), text_of(server.chat()))


@check
def penalties_change_the_text(server):
    prompt = "Repeat the word stone twenty times."
    plain = text_of(server.chat(prompt, max_tokens=32))
    other = text_of(server.chat(prompt, max_tokens=32, frequency_penalty=2.0, presence_penalty=2.0))
    expect(plain != other, f"both texts are {plain!r}")


@check
def n_gives_several_answers(server):
    answer = server.chat(n=3, temperature=1.0, seed=1)
    equal([choice.index for choice in answer.choices], [0, 1, 2], "indices")
    expect(all(choice.message.content for choice in answer.choices), "an empty answer")
    expect(answer.usage.completion_tokens >= 3, f"{answer.usage}")


@check
def greedy_answers_of_one_request_are_equal(server):
    answer = server.chat(n=2)
    texts = {choice.message.content for choice in answer.choices}
    equal(texts, {text_of(server.chat())})


@check
def logit_bias_bans_a_token(server):
    first = server.chat(logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    banned = first.model_extra["id"]
    text = server.chat(logit_bias={str(banned): -100}, logprobs=True).choices[0].logprobs.content
    expect(all(token.model_extra["id"] != banned for token in text), f"token {banned} was drawn")


@check
def logit_bias_forces_a_token(server):
    token = server.tokenize(" stone")[0]
    piece = server.post("/detokenize", {"tokens": [token]})["content"]
    equal(text_of(server.chat(logit_bias={str(token): 100}, max_tokens=4)).strip(), (piece * 4).strip())


@check
def json_object_is_an_object(server):
    answer = server.chat(
        "Give me a person as JSON.", response_format={"type": "json_object"}, max_tokens=200
    )
    if answer.choices[0].finish_reason == "stop":
        expect(isinstance(json.loads(text_of(answer)), dict), text_of(answer))
    else:
        expect(text_of(answer).lstrip().startswith("{"), text_of(answer))


@check
def json_schema_is_obeyed(server):
    answer = server.chat("Name a city.", response_format=schema_format(SCHEMA), max_tokens=60)
    reply = json.loads(text_of(answer))
    equal(set(reply), {"city", "size"}, "keys")
    expect(reply["size"] in ("small", "large") and len(reply["city"]) <= 12, f"{reply}")
    equal(answer.choices[0].finish_reason, "stop")


@check
def json_schema_holds_at_a_high_temperature(server):
    for seed in range(3):
        answer = server.chat(
            "Name a city.",
            response_format=schema_format(SCHEMA),
            max_tokens=120,
            temperature=1.5,
            seed=seed,
        )
        equal(set(json.loads(text_of(answer))), {"city", "size"}, "keys")


@check
def json_schema_in_a_stream(server):
    stream = server.chat(
        "Name a city.", response_format=schema_format(SCHEMA), max_tokens=60, stream=True
    )
    equal(set(json.loads(joined(stream))), {"city", "size"}, "keys")


@check
def typed_parse_gives_an_object(server):
    class Reply(pydantic.BaseModel):
        yes: bool
        size: typing.Literal["small", "large"]

    answer = server.client.chat.completions.parse(
        model=server.model,
        messages=[{"role": "user", "content": "Is Paris large?"}],
        response_format=Reply,
        temperature=0,
        max_tokens=60,
    )
    expect(isinstance(answer.choices[0].message.parsed, Reply), f"{answer.choices[0].message}")


@check
def grammar_is_obeyed(server):
    grammar = {"grammar": 'root ::= "granite" | "basalt"'}
    answer = server.chat("Are you sure?", extra_body=grammar, max_tokens=20)
    expect(text_of(answer) in ("granite", "basalt"), text_of(answer))


@check
def response_format_text_is_plain(server):
    equal(text_of(server.chat(response_format={"type": "text"})), text_of(server.chat()))


@check
def unknown_response_format_is_refused(server):
    refused(400, lambda: server.chat(response_format={"type": "poem"}))


@check
def wrong_grammar_is_refused(server):
    refused(400, lambda: server.chat(extra_body={"grammar": "root ::= ("}))


@check
def wrong_schema_is_refused(server):
    schema = {"type": "object", "properties": {"a": {"type": "no such type"}}, "required": ["a"]}
    refused(400, lambda: server.chat(response_format=schema_format(schema)))


@check
def logprobs_spell_the_text(server):
    answer = server.chat(logprobs=True)
    tokens = answer.choices[0].logprobs.content
    spelled = b"".join(bytes(token.bytes) for token in tokens).decode()
    expect(spelled.startswith(text_of(answer)), f"{spelled!r} is not {text_of(answer)!r}")
    expect(all(token.logprob <= 0 for token in tokens), "a probability above 1")


@check
def top_logprobs_are_sorted(server):
    for token in server.chat(logprobs=True, top_logprobs=4).choices[0].logprobs.content:
        values = [top.logprob for top in token.top_logprobs]
        equal(len(values), 4, "top_logprobs")
        equal(values, sorted(values, reverse=True), "order")
        expect(sum(math.exp(value) for value in values) <= 1 + 1e-4, f"{values}")
        equal(token.top_logprobs[0].token, token.token, "greedy token")


@check
def stream_order(server):
    chunks = list(server.chat(stream=True))
    equal(chunks[0].choices[0].delta.role, "assistant", "role of the first chunk")
    expect(not chunks[0].choices[0].delta.content, "the first chunk has no text")
    expect(all(c.choices[0].finish_reason is None for c in chunks[:-1]), "an early finish_reason")
    expect(chunks[-1].choices[0].finish_reason in ("stop", "length"), "no finish_reason")
    expect(not chunks[-1].choices[0].delta.content, "the last chunk has text")
    expect(all(chunk.choices[0].delta.role is None for chunk in chunks[1:]), "a second role")
    expect(all(chunk.object == "chat.completion.chunk" for chunk in chunks), "object")


@check
def stream_usage_is_the_last_chunk(server):
    chunks = list(server.chat(stream=True, stream_options={"include_usage": True}))
    equal(chunks[-1].choices, [], "choices of the usage chunk")
    usage = chunks[-1].usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")
    expect(chunks[-2].choices[0].finish_reason is not None, "finish_reason before the usage")
    expect(all(not chunk.usage for chunk in chunks[:-1]), "usage before the end")


@check
def stream_without_usage_has_none(server):
    expect(all(chunk.usage is None for chunk in server.chat(stream=True)), "usage without asking")


@check
def stream_is_the_whole_answer(server):
    equal(joined(server.chat(stream=True)), text_of(server.chat()))


@check
def stream_has_one_id(server):
    chunks = list(server.chat(stream=True))
    equal(len({(chunk.id, chunk.model, chunk.created) for chunk in chunks}), 1, "ids")
    expect(chunks[0].id.startswith("chatcmpl-"), chunks[0].id)


@check
def stream_with_logprobs(server):
    chunks = list(server.chat(stream=True, logprobs=True, top_logprobs=2))
    tokens = [
        token
        for chunk in chunks
        if chunk.choices and chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    whole = server.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    equal([token.token for token in tokens], [token.token for token in whole])


@check
def stream_holds_a_stop_string_back(server):
    whole = text_of(server.chat(max_tokens=24))
    stop = whole[len(whole) // 2 :][:6]
    equal(joined(server.chat(max_tokens=24, stop=stop, stream=True)), whole[: whole.index(stop)])


@check
def stream_of_several_answers(server):
    texts, ends = {0: "", 1: ""}, {}
    for chunk in server.chat(stream=True, n=2):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    equal(set(ends), {0, 1}, "answers that ended")
    equal(set(texts.values()), {text_of(server.chat())}, "greedy texts")


@check
def stream_is_server_sent_events(server):
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "max_tokens": 4,
    }
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        contains(response.headers["content-type"], "text/event-stream", "content-type")
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    expect(all(line.startswith("data: ") for line in lines), f"{lines}")
    equal(lines[-1], "data: [DONE]", "last line")


@check
def input_tokens_are_those_of_the_answer(server):
    messages = [{"role": "user", "content": "Name three colours."}]
    counted = server.post("/v1/chat/completions/input_tokens", {"messages": messages})
    equal(counted["input_tokens"], server.chat().usage.prompt_tokens)


@check
def example_of_the_guide_prints_an_answer(server):
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    for documented, here in (
        ("http://127.0.0.1:8080", server.base),
        ('api_key="-"', f"api_key={server.key!r}"),
        ('model="smollm2-135m"', f"model={server.model!r}, max_tokens=8"),
    ):
        expect(documented in example, f"no {documented!r} in {example}")
        example = example.replace(documented, here)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, str(GUIDE), "exec"), {})
    expect(printed.getvalue().strip(), "nothing was printed")
