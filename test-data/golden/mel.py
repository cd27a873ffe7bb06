"""Golden excerpts of OpenAI Whisper's log-mel spectrogram: `mel.json` beside this file.

Runs the real `whisper/audio.py` of openai-whisper 20250625 (its source archive) on CPU PyTorch;
only that module and its `exact_div` are loaded. Debian's `python3-torch` (1.13.1) is enough:

    python3 mel.py PATH/openai_whisper-20250625 [--out DIR]
"""

import importlib
import json
import pathlib
import sys
import types

import numpy as np
import torch

root = pathlib.Path(sys.argv[1])
here = pathlib.Path(__file__).resolve().parent
out = pathlib.Path(sys.argv[3]) if sys.argv[2:3] == ["--out"] else here
package = types.ModuleType("whisper")
package.__path__ = [str(root / "whisper")]
sys.modules["whisper"] = package
audio = importlib.import_module("whisper.audio")


def fox():
    """The samples of the test clip (16 kHz float WAV)."""
    raw = (here.parent / "audio" / "quick_brown_fox.wav").read_bytes()
    at = raw.index(b"data") + 8
    n_bytes = int.from_bytes(raw[at - 4 : at], "little")
    return np.frombuffer(raw[at : at + n_bytes], "<f4").copy()


def synthetic(n):
    """An integer hash as noise plus a square wave: the same bits in every language."""
    i = np.arange(n, dtype=np.uint64)
    noise = ((i * 2654435761) % 4294967296) >> 16
    noise = (noise.astype(np.int64) - 32768).astype(np.float32) / 32768.0
    square = np.where((np.arange(n) // 20) % 2 == 0, 1.0, -1.0).astype(np.float32)
    return noise * np.float32(0.125) + square * np.float32(0.25)


def signals():
    yield "fox", fox(), 480000
    yield "fox_quiet", fox() * np.float32(2.0**-10), 160
    yield "synthetic", synthetic(20000), 0
    yield "synthetic_quiet", synthetic(8001) * np.float32(2.0**-14), 480000
    yield "short", synthetic(201), 160


cases = []
for n_mels in (80, 128):
    for name, samples, padding in signals():
        mel = audio.log_mel_spectrogram(samples, n_mels=n_mels, padding=padding).T.numpy()
        n_frames = mel.shape[0]
        picks = sorted({0, 1, 2, n_frames - 1, *np.linspace(0, n_frames - 1, 7, dtype=int).tolist()})
        content = len(samples) // 160
        picks = sorted({*picks, *(p for p in (content // 3, content // 2, content, content + 1) if p < n_frames)})
        picks = [int(p) for p in picks if 0 <= p < n_frames]
        cases.append({
            "signal": name, "n_mels": n_mels, "padding": padding, "n_frames": n_frames,
            "mean": round(float(mel.astype(np.float64).mean()), 6),
            "frames": [{"index": p, "values": [round(float(v), 5) for v in mel[p]]} for p in picks],
        })
(out / "mel.json").write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")
