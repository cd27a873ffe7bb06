"""lm-evaluation-harness on /v1/completions: scores of prompts against the program's, choices, continuations."""

import functools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from harness import LIMIT_S, check, equal, expect

TESTS = pathlib.Path(__file__).resolve().parents[1]
TEXT = pathlib.Path(__file__).resolve().parents[4] / "test-data/text/evaluation.txt"
N_CTX = 64
N_WINDOWS = 4


def make_tokenizer(server, folder):
    """Files of the model's tokenizer as transformers reads them, from its GGUF file."""
    path = pathlib.Path(server.get("/props")["model_path"])
    fields = gguf.GGUFReader(path / "model.gguf" if path.is_dir() else path).fields
    values = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    equal(values["tokenizer.ggml.model"], "gpt2", "tokenizer")
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = lambda name: tokens[values[f"tokenizer.ggml.{name}_token_id"]]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special("bos"), "eos_token": special("eos")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@functools.cache
def words(server):
    """Words that are one token each, so that a text of them is cut anywhere between two tokens."""
    text = " ".join(TEXT.read_text(encoding="utf-8").split()[:800])
    pieces = [token["piece"] for token in server.tokenize(text, with_pieces=True)]
    starts = lambda piece: isinstance(piece, str) and piece.startswith(" ")
    found = [a for a, b in zip(pieces, pieces[1:]) if starts(a) and starts(b) and a[1:].isalpha()]
    expect(len(found) >= N_CTX * N_WINDOWS, f"{len(found)} words")
    return found[: N_CTX * N_WINDOWS]


def make_windows(server, folder):
    """The context and the continuation of each window, whose first half and one more token are not measured."""
    lines = []
    for at in range(0, N_CTX * N_WINDOWS, N_CTX):
        window, n = words(server)[at : at + N_CTX], N_CTX // 2 + 1
        lines.append(json.dumps({"context": "".join(window[:n]), "continuation": "".join(window[n:])}))
    (folder / "windows.jsonl").write_text("\n".join(lines) + "\n")


@functools.cache
def evaluated(server):
    """Results and samples of the tasks: one run, whose start takes longer than its requests."""
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        for file in (TESTS / "lm-eval").iterdir():
            shutil.copy(file, folder)
        make_tokenizer(server, folder)
        make_windows(server, folder)
        model = {
            "model": server.model,
            "base_url": f"{server.base}/v1/completions",
            "tokenizer": path,
            "tokenizer_backend": "huggingface",
            "num_concurrent": 2,
            "max_retries": 1,
        }
        arguments = ["--model", "local-completions", "--tasks", "windows,capitals,written"]
        arguments += ["--model_args", ",".join(f"{name}={value}" for name, value in model.items())]
        arguments += ["--include_path", path, "--output_path", str(folder / "out"), "--log_samples"]
        offline = {name: "1" for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")}
        run = subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", *arguments],
            cwd=folder,
            env=os.environ | offline | {"HF_HOME": str(folder / "cache"), "OPENAI_API_KEY": server.key},
            capture_output=True,
            text=True,
            timeout=5 * LIMIT_S,
            check=False,
        )
        equal(run.returncode, 0, f"status of lm_eval: {run.stderr[-500:]}")
        [results] = folder.glob("out/**/results_*.json")
        samples = {}
        for file in folder.glob("out/**/samples_*.jsonl"):
            name = file.name.split("_")[1]
            samples[name] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return json.loads(results.read_text(encoding="utf-8"))["results"], samples


def log_likelihoods(sample):
    """Log-likelihood of each continuation, and whether it is greedy; files have them as text."""
    return [(float(value), str(greedy) == "True") for [[value, greedy]] in sample["resps"]]


@check
def log_likelihoods_are_those_of_perplexity(server):
    _, samples = evaluated(server)
    equal(len(samples["windows"]), N_WINDOWS, "windows")
    text = "".join(words(server))
    equal(len(server.tokenize(text, add_special=True)), N_CTX * N_WINDOWS, "tokens")
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "text"
        file.write_text(text, encoding="utf-8")
        # Batches of a whole window, as the server computes prompts.
        options = ["--file", file, "--ctx-size", str(N_CTX), "--batch-size", str(N_CTX), "--json", "--quiet"]
        command = [server.stonechat, "perplexity", server.model, *options]
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    equal(run.returncode, 0, f"status of perplexity: {run.stderr[-300:]}")
    expected = json.loads(run.stdout)
    n = N_WINDOWS * (N_CTX - N_CTX // 2 - 1)
    equal(expected["tokens"], n, "measured tokens")
    total = sum(value for sample in samples["windows"] for value, _ in log_likelihoods(sample))
    value = math.exp(-total / n)
    expect(abs(value / expected["perplexity"] - 1) < 1e-5, f"{value} and {expected['perplexity']}")


@check
def likely_choices_are_right(server):
    results, samples = evaluated(server)
    equal(len(samples["capitals"]), 8, "questions")
    for sample in samples["capitals"]:
        scores = log_likelihoods(sample)
        expect(len(scores) == 4 and all(value < 0 for value, _ in scores), f"{scores}")
    # A guess is right in a quarter.
    expect(results["capitals"]["acc,none"] >= 0.75, f"{results['capitals']}")


@check
def greedy_continuations_are_those_of_the_server(server):
    _, samples = evaluated(server)
    equal(len(samples["written"]), 8, "questions")
    for sample in samples["written"]:
        [[text]] = sample["resps"]
        question = sample["doc"]["question"]
        equal(text, server.complete(question, max_tokens=6, stop=["."]).choices[0].text, question)
