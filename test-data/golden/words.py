#!/usr/bin/env python3
"""Golden word times of faster-whisper in float32: `words.json` beside this file.

Usage: words.py --models DIR [--out DIR]
Needs: faster-whisper==1.2.1; models tiny.en and base in --models.

made_by      versions of the packages that computed the values
cases[]      one recording each, greedy, at temperature 0 only and without earlier text:
  model, audio, language
  segments[] of the transcript:
    tokens[]
    words[]  [text, start, end, probability]
"""

import argparse
import json
from pathlib import Path

import ctranslate2
import faster_whisper

HERE = Path(__file__).resolve().parent

CASES = [
    ("tiny.en", "quick_brown_fox.wav", "en"),
    ("tiny.en", "counting.wav", "en"),
    ("base", "quick_brown_fox.wav", "en"),
    ("base", "es_hola_mundo.wav", "es"),
    ("base", "fr_pangrama.wav", "fr"),
]


def case(models, name, audio, language):
    model = faster_whisper.WhisperModel(str(models / name), device="cpu", compute_type="float32")
    segments, _ = model.transcribe(
        str(HERE.parent / "audio" / audio),
        language=language,
        beam_size=1,
        temperature=0,
        condition_on_previous_text=False,
        word_timestamps=True,
    )
    return {
        "model": name,
        "audio": audio,
        "language": language,
        "segments": [
            {
                "tokens": segment.tokens,
                "words": [[w.word, round(float(w.start), 2), round(float(w.end), 2), round(float(w.probability), 4)] for w in segment.words],
            }
            for segment in segments
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    made_by = f"faster-whisper {faster_whisper.__version__}, CTranslate2 {ctranslate2.__version__}"
    golden = {"made_by": made_by, "cases": [case(arguments.models, *c) for c in CASES]}
    (arguments.out / "words.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
