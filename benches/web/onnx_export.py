"""Writes a Whisper model as transformers.js reads it: ONNX graphs in f32 and q8, configurations, tokenizer.

    pip install numpy onnx onnxruntime
    python benches/web/onnx_export.py CTRANSLATE2_FOLDER OUT_FOLDER

The graphs have the inputs and outputs of Hugging Face's exports and the plain operators that onnxruntime fuses. The q8 graphs are made
with the settings of transformers.js' `scripts/quantize.py`: dynamic, per tensor, unsigned where there is a convolution.
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

OPSET = 20
HEAD_DIM = 64
DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read_ctranslate2(path):
    """Tensors by name of a `model.bin`, version 6."""
    data = path.read_bytes()
    at = 0

    def number(code):
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize(code)
        return value

    def string():
        nonlocal at
        length = number("H")
        value = data[at : at + length - 1].decode()
        at += length
        return value

    version = number("I")
    if version != 6:
        raise SystemExit(f"{path}: expected version 6, got {version}")
    string(), number("I")
    tensors = {}
    for _ in range(number("I")):
        name = string()
        shape = [number("I") for _ in range(number("B"))]
        dtype = DTYPES[number("B")]
        n_bytes = number("I")
        values = np.frombuffer(data, dtype, n_bytes // np.dtype(dtype).itemsize, at)
        tensors[name] = values.reshape(shape)
        at += n_bytes
    return tensors


class Graph:
    """Nodes and constants of a graph under construction. Methods return the name of their output."""

    def __init__(self, tensors):
        self.tensors, self.nodes, self.constants, self.n = tensors, [], {}, 0

    def op(self, kind, *inputs, outputs=1, name=None, **attributes):
        self.n += 1
        names = [name] if name else [f"{kind}_{self.n}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{self.n}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, values, name=None):
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    def weight(self, name, values=None):
        values = self.tensors[name] if values is None else values
        return self.constant(np.ascontiguousarray(values, dtype=np.float32), name.replace("/", "."))

    def ints(self, *values):
        return self.constant(np.array(values, dtype=np.int64))

    def norm(self, x, name):
        return self.op("LayerNormalization", x, self.weight(f"{name}/gamma"), self.weight(f"{name}/beta"), axis=-1, epsilon=1e-5)

    def linear(self, x, name, part=None, has_bias=True):
        """`x · Wᵀ + b`; `part` is one of the parts of fused weights."""
        weight, bias = self.tensors[f"{name}/weight"], self.tensors[f"{name}/bias"]
        suffix = ""
        if part is not None:
            index, n = part
            weight, bias, suffix = np.split(weight, n)[index], np.split(bias, n)[index], f"/{index}"
        y = self.op("MatMul", x, self.weight(f"{name}/weight{suffix}", weight.T))
        return self.op("Add", y, self.weight(f"{name}/bias{suffix}", bias)) if has_bias else y

    def heads(self, x, n_heads):
        """`[B, S, H * D]` to `[B, H, S, D]`."""
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, 0, n_heads, HEAD_DIM)), perm=[0, 2, 1, 3])

    def attention(self, q, k, v, mask=None):
        q = self.op("Mul", q, self.constant(np.float32(HEAD_DIM**-0.5)))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        if mask:
            scores = self.op("Add", scores, mask)
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.ints(0, 0, -1))

    def mlp(self, x, name):
        y = self.op("Gelu", self.linear(self.norm(x, f"{name}/layer_norm"), f"{name}/linear_0"))
        return self.op("Add", x, self.linear(y, f"{name}/linear_1"))

    def save(self, path, name, inputs, outputs):
        graph = helper.make_graph(self.nodes, name, inputs, outputs, list(self.constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def value(name, dtype, *shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def write_encoder(path, tensors, n_layers, n_heads):
    graph, x = Graph(tensors), "input_features"
    for conv, stride in (("encoder/conv1", 1), ("encoder/conv2", 2)):
        weights = graph.weight(f"{conv}/weight"), graph.weight(f"{conv}/bias")
        x = graph.op("Gelu", graph.op("Conv", x, *weights, kernel_shape=[3], pads=[1, 1], strides=[stride]))
    x = graph.op("Transpose", x, perm=[0, 2, 1])
    x = graph.op("Add", x, graph.weight("encoder/position_encodings/encodings"))
    for i in range(n_layers):
        name = f"encoder/layer_{i}"
        y = graph.norm(x, f"{name}/self_attention/layer_norm")
        qkv = [graph.heads(graph.linear(y, f"{name}/self_attention/linear_0", (part, 3)), n_heads) for part in range(3)]
        x = graph.op("Add", x, graph.linear(graph.attention(*qkv), f"{name}/self_attention/linear_1"))
        x = graph.mlp(x, f"{name}/ffn")
    x = graph.norm(x, "encoder/layer_norm")
    graph.op("Identity", x, name="last_hidden_state")
    n_mels, width = tensors["encoder/conv1/weight"].shape[1], tensors["encoder/conv1/weight"].shape[0]
    inputs = [value("input_features", TensorProto.FLOAT, "batch_size", n_mels, 3000)]
    graph.save(path, "encoder", inputs, [value("last_hidden_state", TensorProto.FLOAT, "batch_size", 1500, width)])


def cross_keys(graph, y, name, past, part, n_heads):
    """Keys or values of the encoder's output: those of the first step, later those before."""
    branch = Graph(graph.tensors)
    # Names are unique in the branch and around it.
    branch.n = graph.n
    computed = branch.heads(branch.linear(y, f"{name}/linear_1", (part, 2)), n_heads)
    graph.n = branch.n
    # A quantizer finds weights in the main graph.
    graph.constants.update({key: c for key, c in branch.constants.items() if key.startswith("decoder.")})
    own = [c for key, c in branch.constants.items() if not key.startswith("decoder.")]
    unknown = [value(computed, TensorProto.FLOAT, None, None, None, None)]
    no_cache = helper.make_graph(branch.nodes, f"compute_{graph.n}", [], unknown, own)
    kept = f"{past}_kept_{graph.n}"
    keep = helper.make_node("Identity", [past], [kept])
    cached = helper.make_graph([keep], f"keep_{graph.n}", [], [value(kept, TensorProto.FLOAT, None, None, None, None)])
    return graph.op("If", "use_cache_branch", then_branch=cached, else_branch=no_cache)


def causal_mask(graph, length, past):
    """`[S, P + S]`: 0 for this position and those before, else a number so small that its exponential is 0."""
    zero, one = graph.constant(np.int64(0)), graph.constant(np.int64(1))
    total = graph.op("Add", past, length)
    rows = graph.op("Unsqueeze", graph.op("Range", past, total, one), graph.ints(1))
    columns = graph.op("Unsqueeze", graph.op("Range", zero, total, one), graph.ints(0))
    visible = graph.op("LessOrEqual", columns, rows)
    return graph.op("Where", visible, graph.constant(np.float32(0)), graph.constant(np.float32(-1e30)))


def write_decoder(path, tensors, n_layers, n_heads):
    graph = Graph(tensors)
    embeddings = graph.weight("decoder/embeddings/weight")
    size = lambda name, axis: graph.op("Gather", graph.op("Shape", name), graph.constant(np.int64(axis)))
    length, past = size("input_ids", 1), size("past_key_values.0.decoder.key", 2)
    ends = [graph.op("Unsqueeze", at, graph.ints(0)) for at in (past, graph.op("Add", past, length))]
    positions = graph.op("Slice", graph.weight("decoder/position_encodings/encodings"), *ends, graph.ints(0))
    x = graph.op("Add", graph.op("Gather", embeddings, "input_ids"), positions)
    mask = causal_mask(graph, length, past)
    for i in range(n_layers):
        name, cache = f"decoder/layer_{i}", f"{i}.decoder"
        y = graph.norm(x, f"{name}/self_attention/layer_norm")
        qkv = [graph.heads(graph.linear(y, f"{name}/self_attention/linear_0", (part, 3)), n_heads) for part in range(3)]
        keys, values = (
            graph.op("Concat", f"past_key_values.{cache}.{kind}", new, axis=2, name=f"present.{cache}.{kind}")
            for kind, new in zip(("key", "value"), qkv[1:])
        )
        attended = graph.attention(qkv[0], keys, values, mask)
        x = graph.op("Add", x, graph.linear(attended, f"{name}/self_attention/linear_1"))
        cross = f"{name}/attention"
        q = graph.heads(graph.linear(graph.norm(x, f"{cross}/layer_norm"), f"{cross}/linear_0"), n_heads)
        found = []
        for part, kind in enumerate(("key", "value")):
            chosen = cross_keys(graph, "encoder_hidden_states", cross, f"past_key_values.{i}.encoder.{kind}", part, n_heads)
            found.append(graph.op("Identity", chosen, name=f"present.{i}.encoder.{kind}"))
        x = graph.op("Add", x, graph.linear(graph.attention(q, *found), f"{cross}/linear_2"))
        x = graph.mlp(x, f"{name}/ffn")
    x = graph.norm(x, "decoder/layer_norm")
    graph.op("MatMul", x, graph.weight("projection", tensors["decoder/embeddings/weight"].T), name="logits")

    vocab, width = tensors["decoder/embeddings/weight"].shape
    inputs = [
        value("input_ids", TensorProto.INT64, "batch_size", "decoder_sequence_length"),
        value("encoder_hidden_states", TensorProto.FLOAT, "batch_size", 1500, width),
    ]
    outputs = [value("logits", TensorProto.FLOAT, "batch_size", "decoder_sequence_length", vocab)]
    for i in range(n_layers):
        for part in ("decoder", "encoder"):
            for kind in ("key", "value"):
                shape = lambda which: ("batch_size", n_heads, f"{which}_{part}_sequence_length", HEAD_DIM)
                inputs.append(value(f"past_key_values.{i}.{part}.{kind}", TensorProto.FLOAT, *shape("past")))
                outputs.append(value(f"present.{i}.{part}.{kind}", TensorProto.FLOAT, *shape("total")))
    inputs.append(value("use_cache_branch", TensorProto.BOOL, 1))
    graph.save(path, "decoder", inputs, outputs)


def quantize(path):
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    kind = QuantType.QUInt8 if "Conv" in kinds else QuantType.QInt8
    out = path.with_name(path.stem + "_quantized.onnx")
    options = {"EnableSubgraph": True, "MatMulConstBOnly": True}
    quantize_dynamic(path, out, weight_type=kind, per_channel=False, reduce_range=False, extra_options=options)
    # The quantizer leaves the type of casts open in the branches of an `If`.
    model = onnx.load(out)
    for node in model.graph.node:
        for branch in (attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH):
            for cast in (inner for inner in branch.node if inner.op_type == "Cast"):
                del cast.attribute[:]
                cast.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    onnx.save(model, out)


def write_configs(folder, out, tensors, n_layers, n_heads):
    config = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in tokens}
    start, end, silent = ids["<|startoftranscript|>"], ids["<|endoftext|>"], ids["<|notimestamps|>"]
    vocab, width = tensors["decoder/embeddings/weight"].shape
    is_multilingual = vocab > 51_864
    inner = tensors["encoder/layer_0/ffn/linear_0/weight"].shape[0]
    shared = {"bos_token_id": end, "decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end}
    model = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": True,
        "d_model": width, "vocab_size": vocab, "num_mel_bins": tensors["encoder/conv1/weight"].shape[1],
        "encoder_layers": n_layers[0], "decoder_layers": n_layers[1], "num_hidden_layers": n_layers[0],
        "encoder_attention_heads": n_heads, "decoder_attention_heads": n_heads,
        "encoder_ffn_dim": inner, "decoder_ffn_dim": inner,
        "max_source_positions": 1500, "max_target_positions": 448, "scale_embedding": False, **shared,
    }
    generation = {
        "begin_suppress_tokens": config["suppress_ids_begin"], "suppress_tokens": config["suppress_ids"],
        "is_multilingual": is_multilingual, "max_initial_timestamp_index": 50, "max_length": 448,
        "no_timestamps_token_id": silent, "prev_sot_token_id": ids["<|startofprev|>"], "return_timestamps": False,
        "forced_decoder_ids": [[1, None], [2, ids["<|transcribe|>"]]] if is_multilingual else [[1, silent]],
        "alignment_heads": config["alignment_heads"], **shared,
    }
    if is_multilingual:
        generation["lang_to_id"] = {name: id for name, id in ids.items() if start < id < ids["<|translate|>"]}
        generation["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor", "feature_size": model["num_mel_bins"],
        "sampling_rate": 16_000, "chunk_length": 30, "hop_length": 160, "n_fft": 400, "n_samples": 480_000, "nb_max_frames": 3000,
        "padding_side": "right", "padding_value": 0.0, "return_attention_mask": False,
    }
    text = "<|endoftext|>"
    tokenizer = {
        "tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor", "model_max_length": 1024, "add_prefix_space": False,
        "bos_token": text, "eos_token": text, "pad_token": text, "unk_token": text,
    }
    files = {
        "config.json": model, "generation_config.json": generation, "preprocessor_config.json": features, "tokenizer_config.json": tokenizer,
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    shutil.copyfile(folder / "tokenizer.json", out / "tokenizer.json")


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    folder, out = map(pathlib.Path, sys.argv[1:])
    tensors = read_ctranslate2(folder / "model.bin")
    n_layers = [sum(f"{part}/layer_{i}/ffn/linear_0/bias" in tensors for i in range(64)) for part in ("encoder", "decoder")]
    n_heads = tensors["decoder/embeddings/weight"].shape[1] // HEAD_DIM
    (out / "onnx").mkdir(parents=True, exist_ok=True)
    encoder, decoder = out / "onnx/encoder_model.onnx", out / "onnx/decoder_model_merged.onnx"
    write_encoder(encoder, tensors, n_layers[0], n_heads)
    write_decoder(decoder, tensors, n_layers[1], n_heads)
    quantize(encoder)
    quantize(decoder)
    write_configs(folder, out, tensors, n_layers, n_heads)


if __name__ == "__main__":
    main()
