"""Another engine as a worker of `cargo xtask bench`: one JSON object a line, as benches/src/protocol.rs says.

    python bench_peer.py llama.cpp|whisper.cpp|faster-whisper [--threads N] [--compute-type TYPE]

It needs the engine's own package (llama-cpp-python, pywhispercpp, faster-whisper), which all bring NumPy. Jobs are done as
this project's worker does them: the same random tokens, greedy decoding, keys and values in f16 where there is a choice.
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import resource
import sys
import time
import wave
from pathlib import Path

import numpy as np

PROTOCOL = 1
SAMPLE_RATE = 16_000
N_BATCH = 512
BATCH_STEPS = 16


class Failure(Exception):
    pass


def clock(function):
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def stage(name, amount, unit):
    return {"name": name, "amount": amount, "unit": unit}


def file_bytes(path):
    path = Path(path)
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


def read_wav(path):
    """16 kHz mono samples of a file that the driver wrote, or of any 16-bit one at that rate."""
    data = Path(path).read_bytes()
    at = data.find(b"data") + 8
    # IEEE float, said by the format itself or by the subformat of an extensible header.
    if b"\x03\x00" in (data[20:22], data[44:46] if data[20:22] == b"\xfe\xff" else b""):
        return np.frombuffer(data[at:len(data) - (len(data) - at) % 4], np.float32).copy()
    with wave.open(str(path)) as wav:
        if (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) != (SAMPLE_RATE, 1, 2):
            raise Failure(f"{path}: expected 16 kHz mono WAV, which this engine's worker does not resample")
        return np.frombuffer(wav.readframes(wav.getnframes()), np.int16).astype(np.float32) / 32768


class Load:
    """Opening a model until it could run."""

    def __init__(self, engine, job):
        self.engine, self.model = engine, job["model"]
        self.stages, self.settings, self.text = [stage("load", file_bytes(self.model), "bytes")], "file in the page cache", None

    def sample(self):
        seconds, loaded = clock(lambda: self.engine.load(self.model))
        self.engine.unload(loaded)
        return [seconds]


class LlamaCpp:
    package = "llama-cpp-python"

    def __init__(self, threads):
        import llama_cpp

        self.cpp, self.threads = llama_cpp, threads
        # Kept in a name: ctypes frees a callback that nothing refers to.
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def device(self):
        return self.cpp.llama_print_system_info().decode().strip()

    def load(self, path, n_ctx=512, n_seq=1):
        cpp = self.cpp
        model = cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params())
        if not model:
            raise Failure(f"cannot load {path}")
        params = cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, N_BATCH, N_BATCH, n_seq
        params.n_threads = params.n_threads_batch = self.threads
        params.swa_full, params.kv_unified = False, True
        context = cpp.llama_init_from_model(model, params)
        if not context:
            raise Failure("cannot make a context")
        return model, context

    def unload(self, loaded):
        model, context = loaded
        self.cpp.llama_free(context)
        self.cpp.llama_model_free(model)

    def open(self, job):
        if job["work"] == "load":
            return Load(self, job)
        if job["work"] == "text":
            return LlamaText(self, job)
        raise Failure(f"llama.cpp has no job {job['work']}")


class LlamaText:
    def __init__(self, engine, job):
        self.cpp = engine.cpp
        self.prefill, self.decode, self.batch = sorted(job["prefill"]), job["decode"], job["batch"]
        self.start = self.prefill[0] if self.prefill else 0
        n_seq = max(self.batch, default=1)
        # Sequences share a cache here, each with what it adds to the common prompt.
        n_ctx = max([0, *self.prefill, self.start + max(self.decode, default=0), self.start + n_seq * (BATCH_STEPS + 1)])
        self.model, self.context = self.loaded = engine.load(job["model"], n_ctx, n_seq)
        self.engine = engine
        vocab = self.cpp.llama_model_get_vocab(self.model)
        self.vocab_size = self.cpp.llama_vocab_n_tokens(vocab)
        self.state, self.text = 1, None
        self.stages = [stage(f"prefill {n}", n, "tokens") for n in self.prefill]
        self.stages += [stage(f"decode {n}", n, "tokens") for n in self.decode]
        self.stages += [stage(f"batch of {n}", n * BATCH_STEPS, "tokens") for n in self.batch]
        self.settings = f"random tokens, KV f16, passes of up to {N_BATCH}"

    def close(self):
        self.engine.unload(self.loaded)

    def tokens(self, n):
        out = []
        for _ in range(n):
            self.state = (self.state * 1_664_525 + 1_013_904_223) & 0xFFFFFFFF
            out.append((self.state >> 8) % self.vocab_size)
        return out

    def make(self, entries):
        """A batch of (token, position, sequence, whether its logits are wanted)."""
        batch = self.cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        return batch

    def run(self, batches):
        """Seconds that the batches take; making them does not count."""
        started = time.perf_counter()
        for batch in batches:
            if self.cpp.llama_decode(self.context, batch):
                raise Failure("llama_decode failed")
            self.cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - started
        for batch in batches:
            self.cpp.llama_batch_free(batch)
        return seconds

    def fill(self, n):
        memory = self.cpp.llama_get_memory(self.context)
        self.cpp.llama_memory_clear(memory, True)
        entries = [(token, i, 0, i == n - 1) for i, token in enumerate(self.tokens(n))]
        return self.run([self.make(entries[i:i + N_BATCH]) for i in range(0, n, N_BATCH)])

    def steps(self, n_seq, n):
        memory = self.cpp.llama_get_memory(self.context)
        # Sliding windows have forgotten what a shorter text needs: it is fed again where it cannot be cut out.
        for sequence in range(1, max(self.batch, default=1)):
            self.cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
        if not self.cpp.llama_memory_seq_rm(memory, 0, self.start, -1) and self.start:
            self.fill(self.start)
        for sequence in range(1, n_seq):
            self.cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        position = self.start
        if n_seq > 1:
            self.run([self.make([(t, position, s, True) for s, t in enumerate(self.tokens(n_seq))])])
            position += 1
        tokens = iter(self.tokens(n_seq * n))
        return self.run([self.make([(next(tokens), position + i, s, True) for s in range(n_seq)]) for i in range(n)])

    def sample(self):
        seconds = [self.fill(n) for n in self.prefill]
        if self.start:
            self.fill(self.start)
        seconds += [self.steps(1, n) for n in self.decode]
        return seconds + [self.steps(n, BATCH_STEPS) for n in self.batch]


class WhisperCpp:
    package = "pywhispercpp"

    def __init__(self, threads):
        # A build from source leaves its libraries beside the module, where the loader does not look.
        for folder in filter(None, sys.path):
            for name in ("libggml-base", "libggml-cpu", "libggml", "libwhisper"):
                for library in sorted(Path(folder).glob(f"{name}.so.[0-9]"))[:1]:
                    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        import _pywhispercpp

        self.cpp, self.threads = _pywhispercpp, threads

    def device(self):
        info = self.cpp.whisper_print_system_info()
        return (info.decode() if isinstance(info, bytes) else str(info)).strip()

    def load(self, path):
        params = self.cpp.whisper_context_default_params()
        return self.cpp.whisper_init_from_file_with_params(path, params)

    def unload(self, context):
        self.cpp.whisper_free(context)

    def open(self, job):
        if job["work"] == "load":
            return Load(self, job)
        if job["work"] == "speech":
            return WhisperCppSpeech(self, job)
        raise Failure(f"whisper.cpp has no job {job['work']}")


class WhisperCppSpeech:
    settings = "greedy, timestamps"

    def __init__(self, engine, job):
        self.engine, self.cpp = engine, engine.cpp
        self.context = engine.load(job["model"])
        self.samples = read_wav(job["audio"])
        self.params = self.cpp.whisper_full_default_params(self.cpp.whisper_sampling_strategy.WHISPER_SAMPLING_GREEDY)
        self.params.n_threads = engine.threads
        self.params.language = "en"
        self.params.print_progress = self.params.print_realtime = False
        self.params.print_timestamps = self.params.print_special = False
        self.text = None
        seconds = len(self.samples) / SAMPLE_RATE
        # Its encoder call ends in the keys and values of the cross-attention.
        names = ["mel", "encoder with cross keys", "transcribe"]
        self.stages = [stage(name, seconds, "audio_seconds") for name in names]

    def close(self):
        self.engine.unload(self.context)

    def sample(self):
        cpp, threads = self.cpp, self.engine.threads
        mel, _ = clock(lambda: cpp.whisper_pcm_to_mel(self.context, self.samples, len(self.samples), threads))
        encode, failed = clock(lambda: cpp.whisper_encode(self.context, 0, threads))
        if failed:
            raise Failure(f"whisper_encode failed: {failed}")
        full, failed = clock(lambda: cpp.whisper_full(self.context, self.params, self.samples, len(self.samples)))
        if failed:
            raise Failure(f"whisper_full failed: {failed}")
        parts = [cpp.whisper_full_get_segment_text(self.context, i) for i in range(cpp.whisper_full_n_segments(self.context))]
        self.text = "".join(part.decode(errors="replace") if isinstance(part, bytes) else part for part in parts)
        return [mel, encode, full]


class FasterWhisper:
    package = "faster-whisper"

    def __init__(self, threads, compute_type):
        import faster_whisper

        self.module, self.threads, self.compute_type = faster_whisper, threads, compute_type

    def device(self):
        import ctranslate2

        return f"CTranslate2 {ctranslate2.__version__}, {self.compute_type}"

    def load(self, path):
        return self.module.WhisperModel(
            path, device="cpu", compute_type=self.compute_type, cpu_threads=self.threads, local_files_only=True)

    def unload(self, model):
        model.model.unload_model()

    def open(self, job):
        if job["work"] == "load":
            return Load(self, job)
        if job["work"] == "speech":
            return FasterWhisperSpeech(self, job)
        raise Failure(f"faster-whisper has no job {job['work']}")


class FasterWhisperSpeech:
    def __init__(self, engine, job):
        self.settings = f"greedy, timestamps, {engine.compute_type}"
        self.model = engine.load(job["model"])
        self.samples = read_wav(job["audio"])
        self.text = None
        seconds = len(self.samples) / SAMPLE_RATE
        self.stages = [stage(name, seconds, "audio_seconds") for name in ["mel", "encoder", "transcribe"]]

    def sample(self):
        mel, features = clock(lambda: self.model.feature_extractor(self.samples))
        frames = features[:, :3000]
        window = np.pad(frames, [(0, 0), (0, 3000 - frames.shape[1])])
        # The result is on its way until it is asked for.
        encode, _ = clock(lambda: np.array(self.model.encode(window)))

        def run():
            segments, _ = self.model.transcribe(self.samples, language="en", beam_size=1, best_of=1)
            return "".join(segment.text for segment in segments)

        transcribe, self.text = clock(run)
        return [mel, encode, transcribe]


def answer(engine, work, request):
    """The reply, and the job that is open from now on."""
    kind = request["request"]
    if kind == "hello":
        version = importlib.metadata.version(engine.package)
        hello = {"protocol": PROTOCOL, "engine": "", "version": f"{engine.package} {version}"}
        return {"reply": "hello", **hello, "device": engine.device(), "threads": engine.threads}, work
    if kind == "open":
        if hasattr(work, "close"):
            work.close()
        work = engine.open(request["job"])
        return {"reply": "opened", "stages": work.stages, "settings": work.settings}, work
    if kind == "sample":
        seconds = work.sample()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {"reply": "sample", "seconds": seconds, "peak_bytes": peak, "text": work.text}, work
    raise Failure(f"no such request: {kind}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=["llama.cpp", "whisper.cpp", "faster-whisper"])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--compute-type", default="float32")
    args = parser.parse_args()
    # Libraries print to standard output, too: replies get a descriptor of their own.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if args.engine == "llama.cpp":
        engine = LlamaCpp(args.threads)
    elif args.engine == "whisper.cpp":
        engine = WhisperCpp(args.threads)
    else:
        engine = FasterWhisper(args.threads, args.compute_type)
    work = None
    for line in sys.stdin:
        try:
            reply, work = answer(engine, work, json.loads(line))
        except Exception as error:
            reply = {"reply": "failed", "error": " ".join(f"{type(error).__name__}: {error}".split())}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
