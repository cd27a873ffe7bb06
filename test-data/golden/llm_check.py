"""Compares the reference logits of test-data/golden/llm with llama.cpp's own, and its greedy continuations.

    pip install llama-cpp-python numpy
    python3 llm_check.py [--f32 FOLDER] [NAME...]

KV cache in f32, no flash attention. llama.cpp rounds activations to f16 before it multiplies them with f16 weights; with `--f32 FOLDER`
(the folder that `llm.py --f32` wrote) the same weights are read in f32, and what is left is a difference in the architecture.
Prints for each golden file the largest absolute difference of a logit and the first token of the continuation that differs, if any.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from llama_cpp import Llama

HERE = Path(__file__).parent / "llm"


def load(path, n_ctx):
    # The binding's defaults for YaRN would replace what the file says; -1 keeps it.
    return Llama(
        str(path), n_ctx=n_ctx, n_batch=128, logits_all=True, type_k=0, type_v=0, flash_attn=False, n_threads=1, verbose=False,
        yarn_ext_factor=-1.0, yarn_attn_factor=-1.0, yarn_beta_fast=-1.0, yarn_beta_slow=-1.0,
    )


def compare(golden, folder):
    llm = load(folder / golden["model"], golden["n_ctx"])
    tokens = golden["tokens"]
    llm.eval(tokens)
    found = llm.scores[golden["positions"]]
    difference = np.abs(found - np.array(golden["logits"], np.float32)).max()
    for step, expected in enumerate(golden["greedy"]):
        best = int(llm.scores[llm.n_tokens - 1].argmax())
        if best != expected:
            return difference, f"token {step}: {best} instead of {expected}"
        llm.eval([best])
    return difference, "same continuation"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--f32", type=Path)
    options = parser.parse_args()
    names = options.names or sorted(p.stem for p in HERE.glob("*.json"))
    for name in names:
        golden = json.loads((HERE / f"{name}.json").read_text())
        columns = [f"{label} {d:.2e} ({text})" for label, d, text in (
            (label, *compare(golden, folder)) for label, folder in (("f16", HERE), ("f32", options.f32)) if folder
        )]
        print(f"{name:16}", "  ".join(columns), flush=True)


if __name__ == "__main__":
    main()
