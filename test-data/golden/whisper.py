#!/usr/bin/env python3
"""Golden numerics of Whisper, made by another implementation: CTranslate2 on the CPU in float32.

Usage: whisper.py --models DIR --audio DIR --out DIR [MODEL ...]     (or: cargo xtask golden)
Needs: ctranslate2==4.8.5 faster-whisper==1.2.1 numpy soundfile; models tiny.en and base in --models.

One file `whisper-MODEL.json` per model. Matrices are row-major; every number is rounded to 6 significant digits.

model, model_sha256   folder name under --models, and SHA-256 of its model.bin
made_by               versions of the packages that computed the values
cases[]               one 30 s window each:
  name
  audio[]             files under test-data/audio, 16 kHz mono, concatenated in this order ...
  gap_samples         ... with so many zero samples between two files; the window is then zero-padded to 480,000 samples
  n_samples           length before the padding, gaps included
  samples_l2          L2 norm of these samples: a different value means that the audio file is another one
  mel, encoder        excerpts of the log-mel spectrogram [n_mels, 3000] and of the encoder output [1500, d_model]:
    shape             of the whole matrix
    mean, l2          over the whole matrix
    rows[], cols[]    which entries are in `values`: values[i][j] = matrix[rows[i]][cols[j]]
    values[][]
    row_mean[], row_l2[]   over the whole of each of `rows`
  language            of the prompt (null: the model knows one language only)
  language_probs      multilingual models: the five likeliest languages, [code, probability]
  no_speech_prob      probability of <|nospeech|> (<|nocaptions|>) after <|startoftranscript|>, over the raw logits
  raw, text, timestamps   three greedy decodings (argmax), each of at most 50 tokens, with
    prompt[]          forced token ids
    tokens[]          the argmax after the prompt, step by step, <|endoftext|> included where it was reached
   raw                prompt ends in <|notimestamps|>; no token is suppressed. It also has, for every step,
    top[][]           the five largest raw logits, [token id, logit], largest first
    fixed_ids[]       some token ids, the same for every step
    fixed[][]         their raw logits, one row per step
    mean[], l2[]      of all raw logits of the step
   text               as `raw`, with the suppress lists of config.json: suppress_ids at every step, suppress_ids_begin at the first
   timestamps         no <|notimestamps|>; the suppress lists and OpenAI's timestamp rules, first timestamp at most 1.0 s
"""

import argparse
import hashlib
import json
from pathlib import Path

import ctranslate2
import faster_whisper
import numpy as np
import soundfile
from faster_whisper.feature_extractor import FeatureExtractor

SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 30 * SAMPLE_RATE
WINDOW_FRAMES = 3000
MAX_TOKENS = 50
GAP_SAMPLES = 8_000

EVERY, ENGLISH, MULTILINGUAL = ("tiny.en", "base"), ("tiny.en",), ("base",)

# Name, files, language of the prompt, models. Every pair of model and case was looked at: where the two largest logits
# of a step are closer than MIN_MARGIN, rounding may swap them, and the case is left out.
CASES = [
    ("quick_brown_fox", ["quick_brown_fox.wav"], "en", EVERY),
    ("counting", ["counting.wav"], "en", EVERY),
    ("hello_world", ["hello_world.wav"], "en", EVERY),
    ("es_hola_mundo", ["es_hola_mundo.wav"], "es", EVERY),
    ("fr_pangrama", ["fr_pangrama.wav"], "fr", ENGLISH),
    ("long", ["counting.wav", "quick_brown_fox.wav", "hello_world.wav", "counting.wav", "quick_brown_fox.wav"], "en", EVERY),
    ("reversed", ["quick_brown_fox.wav", "hello_world.wav", "quick_brown_fox.wav"], "en", EVERY),
    ("languages", ["fr_pangrama.wav", "es_hola_mundo.wav", "hello_world.wav"], "fr", MULTILINGUAL),
]
MIN_MARGIN = 0.04

FIXED_IDS = {
    "tiny.en": [0, 13, 262, 50256, 50257, 50361, 50362, 50363],
    "base": [0, 13, 264, 50257, 50258, 50362, 50363, 50364],
}


def number(value):
    return float(f"{float(value):.6g}")


def numbers(values):
    return [number(v) for v in values]


def excerpt(matrix, rows, cols):
    wide = matrix.astype(np.float64)
    return {
        "shape": list(matrix.shape),
        "mean": number(wide.mean()),
        "l2": number(np.linalg.norm(wide)),
        "rows": rows,
        "cols": cols,
        "values": [numbers(matrix[r, cols]) for r in rows],
        "row_mean": numbers(wide[rows].mean(axis=1)),
        "row_l2": numbers(np.linalg.norm(wide[rows], axis=1)),
    }


def load(audio_dir, files):
    parts = []
    for name in files:
        samples, rate = soundfile.read(audio_dir / name, dtype="float32")
        if rate != SAMPLE_RATE or samples.ndim != 1:
            raise SystemExit(f"{name}: expected 16 kHz mono, got {rate} Hz, shape {samples.shape}")
        if parts:
            parts.append(np.zeros(GAP_SAMPLES, np.float32))
        parts.append(samples)
    samples = np.concatenate(parts)
    if len(samples) > WINDOW_SAMPLES - SAMPLE_RATE:
        raise SystemExit(f"{files}: {len(samples)} samples do not fit one window")
    return samples


def decode(model, encoded, prompt, eot, **options):
    # CTranslate2 generates at most max_length / 2 tokens after the prompt.
    result = model.generate(
        encoded, [prompt], beam_size=1, max_length=2 * MAX_TOKENS, return_no_speech_prob=True, **options
    )[0]
    tokens = list(result.sequences_ids[0])
    if len(tokens) < MAX_TOKENS:
        tokens.append(eot)
    return tokens, result


def raw_decode(model, encoded, prompt, eot, fixed_ids):
    tokens, result = decode(
        model, encoded, prompt, eot, suppress_blank=False, suppress_tokens=[], return_logits_vocab=True
    )
    steps = [np.array(step).reshape(-1) for step in result.logits[0]]
    top = [np.argsort(-step, kind="stable")[:5] for step in steps]
    if [int(t[0]) for t in top] != tokens:
        raise SystemExit("the logits are not those that the tokens were chosen by")
    margin = min(float(step[ids[0]] - step[ids[1]]) for step, ids in zip(steps, top))
    if margin < MIN_MARGIN:
        raise SystemExit(f"the two largest logits of a step are only {margin} apart: leave this case out")
    return {
        "prompt": prompt,
        "tokens": tokens,
        "top": [[[int(i), number(step[i])] for i in ids] for step, ids in zip(steps, top)],
        "fixed_ids": fixed_ids,
        "fixed": [numbers(step[fixed_ids]) for step in steps],
        "mean": numbers(step.astype(np.float64).mean() for step in steps),
        "l2": numbers(np.linalg.norm(step.astype(np.float64)) for step in steps),
    }, result


def run_case(model, tokenizer, name, files, language, audio_dir, fixed_ids):
    samples = load(audio_dir, files)
    window = np.zeros(WINDOW_SAMPLES, np.float32)
    window[: len(samples)] = samples
    mel = FeatureExtractor(feature_size=model.n_mels)(window)[:, :WINDOW_FRAMES]
    mel = np.ascontiguousarray(mel, dtype=np.float32)
    features = ctranslate2.StorageView.from_array(mel[None])
    encoded = model.encode(features)
    output = np.array(encoded)[0]
    last = len(samples) // 320

    sot = tokenizer["<|startoftranscript|>"]
    eot = tokenizer["<|endoftext|>"]
    prompt = [sot]
    if model.is_multilingual:
        prompt += [tokenizer[f"<|{language}|>"], tokenizer["<|transcribe|>"]]
    silent = prompt + [tokenizer["<|notimestamps|>"]]

    raw, result = raw_decode(model, encoded, silent, eot, fixed_ids)
    text, _ = decode(model, encoded, silent, eot)
    timestamps, _ = decode(model, encoded, prompt, eot)
    case = {
        "name": name,
        "audio": files,
        "gap_samples": GAP_SAMPLES,
        "n_samples": len(samples),
        "samples_l2": number(np.linalg.norm(samples.astype(np.float64))),
        "mel": excerpt(
            mel,
            [0, 7, 23, 61, model.n_mels - 1],
            [0, 1, 2, 9, 10, 50, 77, 2 * last - 1, 2 * last, 2 * last + 1, 2999],
        ),
        "encoder": excerpt(
            output,
            [0, 1, 2, 25, 50, last, 700, 1498, 1499],
            [0, 1, 2, 31, 64, 127, 200, 256, 320, output.shape[1] - 1],
        ),
        "language": language if model.is_multilingual else None,
        "no_speech_prob": number(result.no_speech_prob),
        "raw": raw,
        "text": {"prompt": silent, "tokens": text},
        "timestamps": {"prompt": prompt, "tokens": timestamps},
    }
    if model.is_multilingual:
        probs = model.detect_language(encoded)[0][:5]
        case["language_probs"] = [[code.strip("<|>"), number(p)] for code, p in probs]
    return case


def write_compact(path, golden):
    """One line per field, so that a diff names the case and field."""
    text = json.dumps(golden, indent=1, ensure_ascii=False)
    lines, joined, open_list = [], "", 0
    for line in text.splitlines():
        body = line.strip()
        if open_list == 0 and not (line.endswith("[") and '"cases"' not in line):
            lines.append(line)
            continue
        joined += line if open_list == 0 else body
        open_list += body.count("[") - body.count("]")
        if open_list == 0:
            lines.append(joined)
            joined = ""
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("model", nargs="*", default=["tiny.en", "base"])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.model:
        folder = args.models / name
        model = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=2
        )
        entries = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        tokenizer = {entry["content"]: entry["id"] for entry in entries}
        cases = [
            run_case(model, tokenizer, case, files, language, args.audio, FIXED_IDS[name])
            for case, files, language, models in CASES
            if name in models
        ]
        golden = {
            "model": name,
            "model_sha256": hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest(),
            "made_by": {
                "ctranslate2": ctranslate2.__version__,
                "faster_whisper": faster_whisper.__version__,
                "compute_type": model.compute_type,
            },
            "cases": cases,
        }
        path = args.out / f"whisper-{name}.json"
        write_compact(path, golden)
        print(f"{path}: {path.stat().st_size} bytes, {len(cases)} cases")


if __name__ == "__main__":
    main()
