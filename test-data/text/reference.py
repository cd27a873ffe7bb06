"""Runs llama.cpp through llama-cpp-python's low-level functions and prints its results as one JSON object.

    python reference.py TASK --model FILE [--threads 2] [--input FILE] [...]

TASK, and what `--input` holds:
    tokens      JSON array of strings -> {"tokens": [[id, ...], ...]}
    greedy      prompts, one a line, "\\n" for a new line -> {"prompts": [{"prompt_tokens", "tokens", "steps", "forced"}, ...]}
                steps: per generated token, forced: per position of prompt and continuation in one batch,
                each [id of the largest logit, that logit, id of the second, that logit]
    perplexity  text -> {"perplexity", "n_tokens", "n_windows", "running": [after each window]}
    speed       nothing -> {"prefill_tok_s", "decode_tok_s"} of this one process

The context has llama.cpp's defaults (flash attention, KV in f16; `--kv f32` is without both). Perplexity is computed as
llama-perplexity does: windows of `--n-ctx` tokens of the text tokenized once, the first token of a window
replaced by BOS where the vocabulary adds one, as many windows in a batch as fit in 2048 tokens, the second half of each
window counted, one final line feed of the file dropped. Speed is measured as llama-bench does: random tokens, one batch
for the prompt, then, from an empty cache, single tokens, each after a warm-up.
"""

import argparse
import ctypes
import json
import math
import random
import sys
import time
from pathlib import Path

import llama_cpp as cpp
import numpy as np

N_BATCH = 2048


class Engine:
    def __init__(self, args, n_ctx, n_seq=1):
        cpp.llama_backend_init()
        self.model = cpp.llama_model_load_from_file(args.model.encode(), cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp cannot load {args.model}")
        self.vocab = cpp.llama_model_get_vocab(self.model)
        self.vocab_size = cpp.llama_vocab_n_tokens(self.vocab)
        self.add_bos = cpp.llama_vocab_get_add_bos(self.vocab)
        self.bos = cpp.llama_vocab_bos(self.vocab)
        self.context = None
        if n_ctx:
            params = cpp.llama_context_default_params()
            params.n_ctx, params.n_batch, params.n_seq_max = n_ctx, max(n_ctx, N_BATCH), n_seq
            params.n_threads = params.n_threads_batch = args.threads
            params.swa_full = False
            if args.kv == "f32":
                # Flash attention would round the cache to f16 all the same.
                params.type_k = params.type_v = params.flash_attn_type = 0
            self.context = cpp.llama_init_from_model(self.model, params)
            if not self.context:
                sys.exit("llama.cpp cannot make a context")

    def tokenize(self, text, special=True):
        raw = text.encode()
        size = len(raw) + 2
        ids = (cpp.llama_token * size)()
        n = cpp.llama_tokenize(self.vocab, raw, len(raw), ids, size, special, False)
        if n < 0:
            sys.exit(f"{-n} tokens do not fit in {size}")
        return list(ids[:n])

    def clear(self):
        cpp.llama_memory_clear(cpp.llama_get_memory(self.context), True)

    def decode(self, entries):
        """Entries are (token, position, sequence, whether its logits are wanted)."""
        batch = cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        failed = cpp.llama_decode(self.context, batch)
        cpp.llama_synchronize(self.context)
        cpp.llama_batch_free(batch)
        if failed:
            sys.exit(f"llama_decode failed: {failed}")

    def logits(self, i):
        row = cpp.llama_get_logits_ith(self.context, i)
        return np.ctypeslib.as_array(row, shape=(self.vocab_size,))


def top2(logits):
    first = int(np.argmax(logits))
    second = int(np.argmax(np.where(np.arange(len(logits)) == first, -np.inf, logits)))
    return [first, float(logits[first]), second, float(logits[second])]


def tokens(args):
    engine = Engine(args, 0)
    strings = json.loads(Path(args.input).read_text())
    return {"tokens": [engine.tokenize(text, not args.no_special) for text in strings]}


def greedy(args):
    engine = Engine(args, args.n_ctx)
    results = []
    prompts = [line.replace("\\n", "\n") for line in Path(args.input).read_text().splitlines()]
    prompts = prompts[:args.prompts] if args.prompts else prompts
    for prompt in prompts:
        engine.clear()
        sequence = engine.tokenize(prompt)
        n_prompt = len(sequence)
        engine.decode([(token, i, 0, i == n_prompt - 1) for i, token in enumerate(sequence)])
        steps = []
        for step in range(args.n_predict):
            steps.append(top2(engine.logits(-1)))
            token = steps[-1][0]
            if cpp.llama_vocab_is_eog(engine.vocab, token) or step == args.n_predict - 1:
                sequence.append(token)
                break
            sequence.append(token)
            engine.decode([(token, len(sequence) - 1, 0, True)])
        engine.clear()
        engine.decode([(token, i, 0, True) for i, token in enumerate(sequence)])
        forced = [top2(engine.logits(i)) for i in range(len(sequence))]
        results.append({
            "prompt": prompt, "prompt_tokens": sequence[:n_prompt], "tokens": sequence[n_prompt:], "steps": steps, "forced": forced,
        })
        print(f"llama.cpp: {len(results)} prompts", file=sys.stderr)
    return {"prompts": results}


def negative_log_likelihood(logits, target):
    largest = logits.max()
    total = np.exp(logits - largest).sum(dtype=np.float64)
    return math.log(total) - float(logits[target] - largest)


def perplexity(args):
    n_ctx = args.n_ctx
    n_seq = max(1, N_BATCH // n_ctx)
    engine = Engine(args, n_seq * n_ctx, n_seq)
    text = Path(args.input).read_bytes().decode()
    text = text[:-1] if text.endswith("\n") else text
    ids = engine.tokenize(text)
    n_windows = len(ids) // n_ctx
    if n_windows < 2:
        sys.exit(f"the text has {len(ids)} tokens, but two windows need {2 * n_ctx}")
    if args.windows:
        n_windows = min(n_windows, args.windows)
    first = n_ctx // 2
    nll, count, running = 0.0, 0, []
    for start in range(0, n_windows, n_seq):
        windows = range(start, min(start + n_seq, n_windows))
        entries = []
        for sequence, window in enumerate(windows):
            chunk = ids[window * n_ctx:(window + 1) * n_ctx]
            if engine.add_bos:
                chunk[0] = engine.bos
            entries += [(token, i, sequence, i >= first) for i, token in enumerate(chunk)]
        engine.clear()
        engine.decode(entries)
        for sequence, window in enumerate(windows):
            for i in range(first, n_ctx - 1):
                nll += negative_log_likelihood(engine.logits(sequence * n_ctx + i), ids[window * n_ctx + i + 1])
                count += 1
            running.append(math.exp(nll / count))
        print(f"llama.cpp: {len(running)}/{n_windows} windows, {running[-1]:.4f}", file=sys.stderr)
    return {"perplexity": running[-1], "n_tokens": len(ids), "n_windows": n_windows, "running": running}


def speed(args):
    n_prompt, n_decode = args.n_prompt, args.n_predict
    engine = Engine(args, max(n_prompt, n_decode))
    rng = random.Random(0)
    first = engine.bos if engine.add_bos else 0

    def prefill():
        engine.clear()
        ids = [first] + [rng.randrange(engine.vocab_size) for _ in range(n_prompt - 1)]
        started = time.perf_counter()
        engine.decode([(token, i, 0, i == n_prompt - 1) for i, token in enumerate(ids)])
        return n_prompt / (time.perf_counter() - started)

    def decode(n):
        engine.clear()
        ids = [first] + [rng.randrange(engine.vocab_size) for _ in range(n - 1)]
        started = time.perf_counter()
        for i, token in enumerate(ids):
            engine.decode([(token, i, 0, True)])
        return n / (time.perf_counter() - started)

    prefill()
    prefill_tok_s = prefill()
    decode(1)
    return {"prefill_tok_s": prefill_tok_s, "decode_tok_s": decode(n_decode)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["tokens", "greedy", "perplexity", "speed"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--input")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--n-predict", type=int, default=64)
    parser.add_argument("--n-prompt", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=0, help="greedy: at most so many prompts; 0 is all")
    parser.add_argument("--windows", type=int, default=0, help="at most so many windows; 0 is all")
    parser.add_argument("--kv", choices=["f16", "f32"], default="f16", help="type of cached keys and values")
    parser.add_argument("--no-special", action="store_true", help="tokens: add no BOS or EOS")
    args = parser.parse_args()
    # Kept in a name: ctypes frees a callback that nothing refers to.
    quiet = cpp.llama_log_callback(lambda level, text, data: None)
    cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    print(json.dumps({"greedy": greedy, "perplexity": perplexity, "speed": speed, "tokens": tokens}[args.task](args)))


if __name__ == "__main__":
    main()
