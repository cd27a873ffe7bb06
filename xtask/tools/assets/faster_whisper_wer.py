"""Transcribe clips with faster-whisper for `cargo xtask wer --peer faster-whisper` and `cargo xtask exactness`.

Standard input: one JSON object a line, {"id", "path", "language"} (language null: detect).
Standard output: one JSON object a line, {"id", "language", "seconds", "text", "segments"}, or
{"id", "error"}. faster-whisper opens and decodes the audio itself, as its users have it do.
Scoring happens in Rust, with the same code that scores stonechat.
"""

import argparse
import json
import sys
import time

from faster_whisper import BatchedInferencePipeline, WhisperModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="CTranslate2 model folder")
    parser.add_argument("--compute-type", default="float32")
    parser.add_argument("--beam-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--vad", choices=["on", "off"])
    parser.add_argument("--word-timestamps", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    model = WhisperModel(
        args.model,
        device="cpu",
        compute_type=args.compute_type,
        cpu_threads=args.threads,
        local_files_only=True,
    )
    if args.batch_size is None:
        engine, batch = model, {}
    else:
        # With timestamps, as the other engine has them: this pipeline's default is without.
        engine = BatchedInferencePipeline(model)
        batch = {"batch_size": args.batch_size, "without_timestamps": False}
    vad = {} if args.vad is None else {"vad_filter": args.vad == "on"}
    for line in sys.stdin:
        if not line.strip():
            continue
        clip = json.loads(line)
        start = time.monotonic()
        try:
            # Everything not named here stays at faster-whisper's default: the temperature
            # fallback list, conditioning on previous text, VAD only in batches
            # unless it is asked for.
            segments, info = engine.transcribe(
                clip["path"],
                language=clip.get("language"),
                beam_size=args.beam_size,
                word_timestamps=args.word_timestamps,
                **batch,
                **vad,
            )
            segments = [
                {
                    "start": s.start,
                    "end": s.end,
                    "text": s.text,
                    "tokens": s.tokens,
                    "temperature": s.temperature,
                    "avg_logprob": s.avg_logprob,
                    "compression_ratio": s.compression_ratio,
                    "no_speech_prob": s.no_speech_prob,
                    "words": [{"word": w.word, "start": w.start, "end": w.end} for w in s.words or []],
                }
                for s in segments
            ]
            result = {
                "id": clip["id"],
                "language": info.language,
                "seconds": time.monotonic() - start,
                "text": "".join(s["text"] for s in segments),
                "segments": segments,
            }
        except Exception as error:  # one unreadable clip must not end the run
            result = {"id": clip["id"], "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
