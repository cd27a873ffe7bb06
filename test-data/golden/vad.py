#!/usr/bin/env python3
"""The weights of Silero VAD v6 for 16 kHz, and golden values of it: `vad.json` beside this file.

Usage: vad.py [--out DIR] [--weights FILE]     (writes DIR/vad.json and the weights, by default crates/audio/src/vad/silero_vad_v6.bin)
Needs: faster-whisper==1.2.1 (its assets/silero_vad_v6.onnx, MIT, Copyright (c) 2020-present Silero Team) onnx soundfile

The weights are little-endian f32 in the order of WEIGHTS below. Convolutions are [C_out][3][C_in], tap-major; the last one,
which sees a single frame, has its middle tap only. The LSTM's gates are in the order input, forget, cell, output, and its
two biases are summed. The analysis window of the short-time transform is a formula and is left out.

made_by      versions of the packages that computed the values
cases[]      one signal each:
  audio[]    files under test-data/audio, 16 kHz mono, concatenated in this order ...
  gaps[]     ... with so many zero samples after each
  n_samples  of the signal
  probabilities[]   of speech for each 512 samples, through onnxruntime
  speech[]   what faster_whisper.vad.get_speech_timestamps makes of it:
    options  of VadOptions that differ from the defaults
    ranges[] [start, end] in samples
"""

import argparse
import json
from pathlib import Path

import faster_whisper
import numpy as np
import onnx
import onnxruntime
import soundfile
from faster_whisper import vad

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

CASES = [
    (["counting.wav"], [0]),
    (["quick_brown_fox.wav", "hello_world.wav", "fr_pangrama.wav", "es_hola_mundo.wav"], [40_000, 9_000, 70_000, 20_003]),
]

OPTIONS = [
    {},
    {"min_silence_duration_ms": 100, "speech_pad_ms": 30, "min_speech_duration_ms": 250},
    {"threshold": 0.9, "min_silence_duration_ms": 0, "speech_pad_ms": 0},
    {"neg_threshold": 0.05, "min_silence_duration_ms": 500, "speech_pad_ms": 200},
    {"max_speech_duration_s": 1.5, "min_silence_duration_ms": 1000, "speech_pad_ms": 100},
    {"max_speech_duration_s": 3.0, "speech_pad_ms": 20},
]


def weights():
    """The initializers of the graph as one f32 array."""
    graph = onnx.load(str(Path(faster_whisper.__file__).parent / "assets" / "silero_vad_v6.onnx")).graph
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    lstm = next(node for node in graph.node if node.op_type == "LSTM")
    parts = []
    for i in range(4):
        weight = stored[f"encoder.conv_layers.{i}.weight"].transpose(0, 2, 1)
        parts += [weight[:, 1:2] if i == 3 else weight, stored[f"encoder.conv_layers.{i}.bias"]]

    def gates(matrix):
        """ONNX orders input, output, forget, cell."""
        i, o, f, c = np.split(matrix, 4)
        return np.concatenate([i, f, c, o])

    inputs, hidden, bias = (stored[name][0] for name in lstm.input[1:4])
    parts += [gates(inputs), gates(bias[:512] + bias[512:]), gates(hidden)]
    parts += [stored["decoder.conv1d.weight"], stored["decoder.conv1d.bias"]]
    return np.concatenate([part.ravel() for part in parts]).astype("<f4")


def signal(names, gaps):
    parts = []
    for name, gap in zip(names, gaps):
        samples, rate = soundfile.read(ROOT / "test-data" / "audio" / name, dtype="float32")
        assert rate == 16_000 and samples.ndim == 1
        parts += [samples, np.zeros(gap, np.float32)]
    return np.concatenate(parts)


def case(names, gaps):
    audio = signal(names, gaps)
    padded = np.pad(audio, (0, 512 - len(audio) % 512))
    probabilities = vad.get_vad_model()(padded).ravel()
    speech = []
    for options in OPTIONS:
        chunks = vad.get_speech_timestamps(audio, vad.VadOptions(**options))
        speech.append({"options": options, "ranges": [[int(c["start"]), int(c["end"])] for c in chunks]})
    return {
        "audio": names,
        "gaps": gaps,
        "n_samples": len(audio),
        "probabilities": [round(float(p), 6) for p in probabilities],
        "speech": speech,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--weights", type=Path, default=ROOT / "crates/audio/src/vad/silero_vad_v6.bin")
    arguments = parser.parse_args()
    out = arguments.out
    arguments.weights.write_bytes(weights().tobytes())
    made_by = f"faster-whisper {faster_whisper.__version__}, onnxruntime {onnxruntime.__version__}"
    golden = {"made_by": made_by, "cases": [case(*c) for c in CASES]}
    (out / "vad.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
