"""/v1/completions and /v1/embeddings."""

import math

from harness import check, equal, expect, refused


def text_of(answer):
    return answer.choices[0].text


@check
def completion_has_shape(server):
    answer = server.complete()
    equal(answer.object, "text_completion", "object")
    expect(text_of(answer), "an empty text")
    equal((answer.choices[0].index, answer.choices[0].finish_reason), (0, "length"))
    equal(answer.usage.completion_tokens, 12, "completion_tokens")


@check
def completion_repeats(server):
    equal(text_of(server.complete()), text_of(server.complete()))


@check
def echo_puts_the_prompt_first(server):
    equal(text_of(server.complete(echo=True)), "Once upon a time" + text_of(server.complete()))


@check
def n_gives_several_texts(server):
    answer = server.complete(n=2, temperature=1.0, seed=5)
    equal([choice.index for choice in answer.choices], [0, 1], "indices")


@check
def seed_fixes_the_sample(server):
    sample = lambda: text_of(server.complete(temperature=1.0, seed=9))
    equal(sample(), sample())


@check
def stop_string_ends_the_text(server):
    whole = text_of(server.complete())
    stop = whole[len(whole) // 2 :][:3]
    answer = server.complete(stop=[stop])
    equal((text_of(answer), answer.choices[0].finish_reason), (whole[: whole.index(stop)], "stop"))


@check
def logprobs_have_a_token_each(server):
    answer = server.complete(logprobs=2)
    found = answer.choices[0].logprobs
    # OpenAI's lists, or llama.cpp's objects.
    tokens = found.tokens or [token["token"] for token in found.model_extra["content"]]
    equal(len(tokens), answer.usage.completion_tokens)
    equal("".join(tokens), text_of(answer))


@check
def stream_is_the_whole_text(server):
    chunks = list(server.complete(stream=True))
    equal("".join(c.choices[0].text for c in chunks if c.choices), text_of(server.complete()))
    equal(chunks[-1].choices[0].finish_reason, "length")
    expect(all(c.choices[0].finish_reason is None for c in chunks[:-1]), "an early finish_reason")


@check
def stream_usage_is_the_last_chunk(server):
    chunks = list(server.complete(stream=True, stream_options={"include_usage": True}))
    equal((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 12))


@check
def several_prompts_have_a_text_each(server):
    prompts = ["Once upon a time", "The capital of France is"]
    answer = server.complete(prompts)
    by_index = {choice.index: choice.text for choice in answer.choices}
    equal(by_index, {n: text_of(server.complete(prompt)) for n, prompt in enumerate(prompts)})


@check
def tokens_are_a_prompt(server):
    tokens = server.tokenize("Once upon a time", add_special=True)
    equal(text_of(server.complete(tokens)), text_of(server.complete()))


@check
def ignore_eos_fills_the_limit(server):
    answer = server.complete("The end.", max_tokens=80, extra_body={"ignore_eos": True})
    equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (80, "length"))


def embed(server, inputs, **options):
    return server.client.embeddings.create(model=server.model, input=inputs, **options)


@check
def embedding_as_floats(server):
    answer = embed(server, "A dog barks.", encoding_format="float")
    equal((answer.object, len(answer.data), answer.data[0].index), ("list", 1, 0))
    expect(len(answer.data[0].embedding) > 1, "a vector")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens, "total_tokens")


@check
def embedding_as_base64(server):
    # The client asks for base64 when no format is named, and decodes it.
    packed = embed(server, "A dog barks.").data[0].embedding
    floats = embed(server, "A dog barks.", encoding_format="float").data[0].embedding
    equal(len(packed), len(floats), "width")
    expect(all(abs(a - b) < 1e-5 for a, b in zip(packed, floats)), "values differ")


@check
def base64_is_a_string_on_the_wire(server):
    body = {"model": server.model, "input": "A dog barks.", "encoding_format": "base64"}
    vector = server.post("/v1/embeddings", body)["data"][0]["embedding"]
    expect(isinstance(vector, str), f"expected a string, got {type(vector)}")


@check
def embeddings_of_a_batch_are_in_order(server):
    texts = ["A dog barks.", "Granite is a hard stone.", "Stocks fell."]
    answer = embed(server, texts)
    equal([item.index for item in answer.data], [0, 1, 2], "indices")
    for text, item in zip(texts, answer.data):
        alone = embed(server, text).data[0].embedding
        near = sum(a * b for a, b in zip(alone, item.embedding))
        expect(near > 0.999, f"{text!r}: cosine {near} to the vector alone")


@check
def embeddings_have_length_one(server):
    norm = math.sqrt(sum(x * x for x in embed(server, "A dog barks.").data[0].embedding))
    expect(abs(norm - 1) < 1e-3, f"length {norm}")


@check
def near_texts_have_near_embeddings(server):
    texts = ["A dog barks at the cat.", "A dog barks at a cat.", "Interest rates rose in June."]
    a, b, c = (item.embedding for item in embed(server, texts).data)
    dot = lambda x, y: sum(p * q for p, q in zip(x, y))
    expect(dot(a, b) > dot(a, c), f"{dot(a, b)} for near texts, {dot(a, c)} for others")


@check
def tokens_are_embedded(server):
    text = "A dog barks."
    by_tokens = embed(server, server.tokenize(text, add_special=True)).data[0].embedding
    by_text = embed(server, text).data[0].embedding
    near = sum(a * b for a, b in zip(by_tokens, by_text))
    expect(near > 0.999, f"cosine {near}")


@check
def batches_of_tokens_are_embedded(server):
    batch = [server.tokenize(text, add_special=True) for text in ("One.", "Two and three.")]
    equal([item.index for item in embed(server, batch).data], [0, 1], "indices")


@check
def embedding_of_nothing_is_refused(server):
    refused(400, lambda: embed(server, []))


@check
def unknown_encoding_is_refused(server):
    refused(400, lambda: embed(server, "a", encoding_format="hex"))


def harness_score(choice, n_context):
    """Log-likelihood of a continuation, and whether it is greedy, as lm-evaluation-harness reads them."""
    logprobs = choice["logprobs"]
    tokens = logprobs["token_logprobs"][n_context:-1]
    tops = logprobs["top_logprobs"][n_context:-1]
    return sum(tokens), all(token == max(top.values()) for token, top in zip(tokens, tops))


@check
def echo_scores_as_lm_evaluation_harness(server):
    context = server.tokenize("The capital of France is")
    right, wrong = (context + server.tokenize(text) for text in (" Paris", " purple"))
    body = {"model": server.model, "prompt": [right, wrong], "temperature": 0, "max_tokens": 1}
    reply = server.post("/v1/completions", body | {"logprobs": 1, "echo": True, "seed": 1234})
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    for choice, tokens in zip(choices, (right, wrong)):
        logprobs = choice["logprobs"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            equal(len(logprobs[name]), len(tokens) + 1, name)
        equal(logprobs["token_logprobs"][0], None, "the first log-probability")
    scores = [harness_score(choice, len(context))[0] for choice in choices]
    expect(scores[0] > scores[1], f"{scores}")


@check
def rerank_prefers_the_document_that_answers(server):
    documents = ["Bananas are yellow.", "Paris is the capital of France."]
    body = {"model": server.model, "query": "capital of France", "documents": documents}
    reply = server.post("/v1/rerank", body | {"top_n": 1, "return_documents": True})
    equal(len(reply["results"]), 1, "results")
    best = reply["results"][0]
    equal(best["document"]["text"], documents[best["index"]])
    expect(0 <= best["relevance_score"] <= 1, f"{best}")
