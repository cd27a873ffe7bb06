"""Makes the tiny language models of test-data/golden/llm and their reference logits.

Every architecture gets a random model whose switches all matter: norm weights around one, non-zero biases, windows shorter than the
prompt, soft caps that bend the logits. transformers and PyTorch compute the reference in f32; the GGUF comes from llama.cpp's own converter
classes with a vocabulary of 64 tokens. Weights are exact in f16, so that the file and the reference hold the same numbers.

    pip install torch transformers safetensors numpy sentencepiece
    python3 llm.py --llama-cpp PATH_TO_LLAMA_CPP [--only NAME] [--f32 FOLDER]

PATH_TO_LLAMA_CPP is a source tree with `conversion/` and `gguf-py/`. `--f32 FOLDER` writes the same models in f32 too, for llm_check.py.
Each `<name>.json` names its `model`, the context length `n_ctx` it is run with (phi3 chooses its RoPE factors by it), the prompt's
`tokens`, the `logits` after those at `positions`, and the `greedy` continuation of the prompt (no token ends it). `smallest_margin` is how
close any greedy choice or expert choice comes to a tie. `<name>-hf` is the same model as the Hub keeps it.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = Path(__file__).parent / "llm"
VOCAB_SIZE = 64
N_GREEDY = 16
POSITIONS = (0, 9, 25, 39)
MERGES = "Ġ t,h e,i n,Ġ a,Ġt he,r e,o n,e r,Ġ s,a t,n d,o u,Ġ w,e n,in g,Ġ o,Ġa nd,i s".split(",")
SPECIAL = ["<s>", "</s>"]
VOCAB = SPECIAL + list("ĠĊabcdefghijklmnopqrstuvwxyz0123456789.,!?'-") + [m.replace(" ", "") for m in MERGES]
assert len(VOCAB) == VOCAB_SIZE

NARROW = dict(
    vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1,
)
TANH_GELU = "reference with the tanh approximation of GELU, as llama.cpp computes this architecture (transformers uses erf)"


def llama(**changes):
    return transformers.LlamaConfig(**{**NARROW, "tie_word_embeddings": False, **changes})


def wide_heads(rope, **changes):
    """One layer of two wide heads: enough frequencies for a scaling rule to treat them differently."""
    return llama(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16, rope_parameters=rope, **changes)


def gemma(cls, **changes):
    return cls(**{
        **NARROW, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8,
        "hidden_activation": "gelu_pytorch_tanh", **changes,
    })


def falcon(**changes):
    return transformers.FalconConfig(**{
        "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "bias": False, "alibi": False,
        "parallel_attn": True, "activation": "gelu_new", "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 256, **changes,
    })


def phi3():
    factors = dict(short_factor=[1.0, 1.05, 1.1, 1.3, 1.5, 2.0], long_factor=[1.1, 1.5, 2.5, 3.5, 4.5, 6.0])
    # llama.cpp rounds a context up to 256 positions before it compares it with the original length.
    return transformers.Phi3Config(**{
        **NARROW, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False, "sliding_window": None,
        "max_position_embeddings": 1024, "original_max_position_embeddings": 256, "partial_rotary_factor": 0.75,
        "rope_parameters": dict(
            rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=256, partial_rotary_factor=0.75, **factors
        ),
    })


def mpt():
    attention = dict(alibi=True, alibi_bias_max=8, attn_pdrop=0)
    return transformers.MptConfig(
        vocab_size=VOCAB_SIZE, d_model=24, n_layers=2, n_heads=3, max_seq_len=256, attn_config=attention, no_bias=True, bos_token_id=0,
        eos_token_id=1, tie_word_embeddings=True,
    )


def gpt_oss():
    # llama.cpp rounds the corners of the YaRN ramp outwards; the released models say `truncate: false`, which it does not read.
    rope = dict(
        rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=True, original_max_position_embeddings=64
    )
    return transformers.GptOssConfig(**{
        **NARROW, "head_dim": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": 8, "tie_word_embeddings": False, "rope_parameters": rope, "max_position_embeddings": 512,
    })


def gemma1():
    return transformers.GemmaConfig(**{
        **NARROW, "num_hidden_layers": 1, "intermediate_size": 24, "head_dim": 8, "hidden_act": "gelu_pytorch_tanh",
    })


def gemma3():
    rope = {
        "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
        "sliding_attention": dict(rope_type="default", rope_theta=10000.0),
    }
    return gemma(
        transformers.Gemma3TextConfig, num_hidden_layers=6, intermediate_size=16, rope_parameters=rope, final_logit_softcapping=None
    )


def qwen3moe():
    return transformers.Qwen3MoeConfig(**{
        **NARROW, "num_hidden_layers": 1, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    })


def phi2():
    return transformers.PhiConfig(**{
        **NARROW, "num_hidden_layers": 1, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
        "hidden_act": "gelu_new", "tie_word_embeddings": False, "rope_parameters": dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
    })


def granite(cls, **changes):
    return cls(**{
        **NARROW, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 0.5,
        "tie_word_embeddings": False, **changes,
    })


def minicpm():
    """The formulas of MiniCPM, which transformers has as those of Granite: embeddings times 12, additions times 1.4 / sqrt(L), logits times base / D."""
    return granite(
        transformers.GraniteConfig, embedding_multiplier=12.0, residual_multiplier=1.4 / 2**0.5, attention_multiplier=8**-0.5,
        logits_scaling=32 / 24,
    )


def hunyuan():
    return transformers.HunYuanDenseV1Config(**{
        **NARROW, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "tie_word_embeddings": True, "max_position_embeddings": 32768,
        "rope_parameters": dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0),
    })


def windowed(cls, **changes):
    """Four layers, the last of which has full attention."""
    types = [*["sliding_attention"] * 3, "full_attention"]
    return cls(**{
        **NARROW, "num_hidden_layers": 4, "intermediate_size": 16, "tie_word_embeddings": False, "sliding_window": 8, "layer_types": types,
        **changes,
    })


def olmo3():
    yarn = dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64,
        attention_factor=1.2,
    )
    return windowed(transformers.Olmo3Config, head_dim=8, rope_parameters=yarn)


def ministral3():
    return transformers.Ministral3Config(**{
        **NARROW, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False, "sliding_window": None,
        "rope_parameters": dict(
            rope_type="yarn", rope_theta=1000000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
            original_max_position_embeddings=16, llama_4_scaling_beta=0.4,
        ),
    })


def vision_model(cls, text, vision):
    return cls(text_config={**NARROW, "head_dim": 8, **text}, vision_config=vision, tie_word_embeddings=False, image_token_id=62, video_token_id=63)


# name -> config and, where there is one, the Hugging Face folder's dtype and layout and a note.
MODELS = {
    "llama": dict(config=llama, folder="f16"),
    "llama-linear": dict(config=lambda: wide_heads(dict(rope_type="linear", factor=4.0, rope_theta=10000.0))),
    "llama-llama3": dict(config=lambda: wide_heads(dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ))),
    "llama-yarn": dict(config=lambda: wide_heads(dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=1024
    ), max_position_embeddings=4096)),
    "llama-bias-tied": dict(config=lambda: llama(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=0.01
    )),
    "qwen2": dict(config=lambda: transformers.Qwen2Config(**{**NARROW, "tie_word_embeddings": True}), folder="bf16"),
    "qwen3": dict(config=lambda: transformers.Qwen3Config(**{
        **NARROW, "num_hidden_layers": 1, "head_dim": 16, "tie_word_embeddings": False
    }), folder="sharded"),
    "qwen3moe": dict(config=qwen3moe, folder="f16"),
    "gemma": dict(config=gemma1),
    "gemma2": dict(config=lambda: gemma(
        transformers.Gemma2Config, num_hidden_layers=3, attn_logit_softcapping=2.0, final_logit_softcapping=6.0
    )),
    "gemma3": dict(config=gemma3, folder="bf16"),
    "phi2": dict(config=phi2),
    "phi3": dict(config=phi3, folder="f16"),
    "gpt-oss": dict(config=gpt_oss),
    "falcon-7b": dict(config=lambda: falcon(multi_query=True, new_decoder_architecture=False), note=TANH_GELU),
    "falcon-40b": dict(config=lambda: falcon(
        num_hidden_layers=1, new_decoder_architecture=True, num_kv_heads=2, layer_norm_epsilon=0.01
    ), note=TANH_GELU),
    "bloom": dict(config=lambda: transformers.BloomConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=1, seq_length=256
    )),
    "mpt": dict(config=mpt, note=TANH_GELU),
    "smollm3": dict(config=lambda: transformers.SmolLM3Config(**{
        **NARROW, "num_hidden_layers": 4, "intermediate_size": 16, "tie_word_embeddings": True, "no_rope_layer_interval": 4,
    }), folder="f16"),
    "ernie4_5": dict(config=lambda: transformers.Ernie4_5Config(**{**NARROW, "head_dim": 8, "tie_word_embeddings": False}), folder="f16"),
    "seed_oss": dict(config=lambda: transformers.SeedOssConfig(**{
        **NARROW, "head_dim": 16, "attention_bias": True, "attention_out_bias": False, "tie_word_embeddings": False,
    }), folder="f16"),
    "hunyuan-dense": dict(config=hunyuan, folder="bf16"),
    "glm4": dict(config=lambda: transformers.Glm4Config(**{
        **NARROW, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": False, "num_hidden_layers": 1,
        "rope_parameters": dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
    }), folder="f16"),
    "olmo2": dict(config=lambda: transformers.Olmo2Config(**{**NARROW, "tie_word_embeddings": False}), folder="f16"),
    "olmo3": dict(config=olmo3, folder="bf16"),
    "exaone4": dict(config=lambda: windowed(transformers.Exaone4Config, head_dim=8), folder="bf16"),
    "exaone4-full": dict(config=lambda: transformers.Exaone4Config(**{
        **NARROW, "head_dim": 8, "num_hidden_layers": 1, "sliding_window": None, "layer_types": ["full_attention"], "tie_word_embeddings": False
    })),
    "cohere2": dict(config=lambda: windowed(
        transformers.Cohere2Config, logit_scale=0.5, tie_word_embeddings=True, layer_norm_eps=0.01
    ), folder="bf16"),
    "granite": dict(config=lambda: granite(transformers.GraniteConfig, rms_norm_eps=0.01), folder="f16"),
    "granitemoe": dict(config=lambda: granite(
        transformers.GraniteMoeConfig, num_hidden_layers=1, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2
    )),
    "minicpm": dict(config=minicpm),
    "mistral3": dict(config=ministral3, folder="bf16"),
    "qwen2vl": dict(config=lambda: vision_model(transformers.Qwen2_5_VLConfig, dict(
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1]),
    ), dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=2, fullatt_block_indexes=[0])), folder="bf16"),
    "qwen3vl": dict(config=lambda: vision_model(transformers.Qwen3VLConfig, dict(
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1], mrope_interleaved=True),
    ), dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=2, num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    )), folder="bf16"),
}


def round_to_f16(values):
    """To numbers that f16 and bf16 both hold: bf16 loses what f16 has in the mantissa, f16 what bf16 has in the exponent."""
    rounded = values.bfloat16().half().float()
    return torch.where(rounded.abs() < 2.0**-12, torch.zeros_like(rounded), rounded)


def spread(name, parameter, config):
    """Mean and standard deviation of one tensor's weights."""
    one_is_added = config.model_type.startswith("gemma")
    tied = config.tie_word_embeddings
    if "norm" in name.lower() or "ln_" in name:
        if name.endswith("bias"):
            return 0.0, 0.2
        # Small embeddings and a large last norm keep a tied model from only repeating its input.
        last = name in ("model.norm.weight", "transformer.ln_f.weight", "transformer.norm_f.weight")
        mean = 4.0 if tied and last else 0.4 if "word_embeddings_layernorm" in name else 1.0
        return (mean - 1.0 if one_is_added else mean), 0.2
    if parameter.dim() == 1 or name.endswith("_bias"):
        return 0.0, 1.0 if "sinks" in name else 0.3
    fan_in = parameter.shape[-1]
    if any(key in name for key in ("embed", "wte")):
        return 0.0, 0.15 if tied else 0.7
    if any(key in name for key in ("q_proj", "k_proj", "query_key_value", "qkv")):
        return 0.0, 1.7 / fan_in**0.5
    if any(key in name for key in ("lm_head", "router", "mlp.gate.weight")):
        return 0.0, 2.5 / fan_in**0.5
    return 0.0, 1.3 / fan_in**0.5


def mxfp4(generator, shape):
    """Random MXFP4 in Hugging Face's layout (blocks of 32 along the last axis, low nibble first) and the values it stands for."""
    codes = torch.randint(0, 16, (*shape[:-1], shape[-1] // 32, 32), generator=generator)
    scales = torch.randint(123, 126, codes.shape[:-1], generator=generator)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = (table[codes] * torch.pow(2.0, scales.float() - 127)[..., None]).reshape(shape)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return blocks, scales.to(torch.uint8), values


def kind(config):
    """The class of transformers that makes the model."""
    has_vision = hasattr(config, "vision_config")
    return transformers.AutoModelForImageTextToText if has_vision else transformers.AutoModelForCausalLM


def build(config, seed):
    """A random model, and the tensors that its folder holds in MXFP4 instead of f16."""
    model = kind(config).from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    packed = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if config.model_type == "gpt_oss" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                n_experts, n_in, n_out = parameter.shape
                blocks, scales, values = mxfp4(generator, (n_experts, n_out, n_in))
                packed[f"{name}_blocks"], packed[f"{name}_scales"] = blocks, scales
                parameter.copy_(values.transpose(1, 2))
                continue
            mean, deviation = spread(name, parameter, config)
            parameter.copy_(round_to_f16(mean + deviation * torch.randn(parameter.shape, generator=generator)))
        if config.model_type == "mpt":
            for block in model.transformer.blocks:
                block.ffn.act = torch.nn.GELU(approximate="tanh")
    return model, packed


def router_gap(model, tokens):
    """The smallest distance between the last expert chosen and the first one left out."""
    gaps = []

    def look(_module, _inputs, output):
        k = model.config.num_experts_per_tok
        values = output[0].sort(dim=-1, descending=True).values
        gaps.append((values[:, k - 1] - values[:, k]).min().item())

    hooks = [m.register_forward_hook(look) for m in model.modules() if "TopKRouter" in type(m).__name__]
    with torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps, default=1.0)


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def golden(model, prompt):
    """Logits of the prompt, the greedy continuation, and how far any choice in it is from a tie."""
    logits = logits_of(model, prompt)
    sequence, margin = list(prompt), 1e9
    for _ in range(N_GREEDY):
        last = logits_of(model, sequence)[-1]
        best = last.topk(2).values
        margin = min(margin, (best[0] - best[1]).item())
        sequence.append(int(last.argmax()))
    return logits, sequence[len(prompt):], min(margin, router_gap(model, sequence))


def search(config, prompts):
    """The first seed whose greedy continuations are varied, free of special tokens and clear of ties."""
    for seed in range(400):
        model, packed = build(config, seed)
        results = [golden(model, prompt) for prompt in prompts]
        clear = all(margin > 0.04 for _, _, margin in results)
        if clear and all(len(set(greedy)) >= 6 and min(greedy) > 1 for _, greedy, _ in results):
            return seed, model, packed, results
    raise SystemExit(f"{config.model_type}: no seed gives a clear continuation")


def write_tokenizer(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    bpe = models.BPE(vocab={t: i for i, t in enumerate(VOCAB)}, merges=[tuple(m.split(" ")) for m in MERGES])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def write_folder(model, packed, folder, layout):
    """A folder as the Hub has it. transformers' own writer splits the fused experts again."""
    # The converter adds one to gemma's norms in the file's type: exact from bf16, which it widens to f32 first, but not from f16.
    wants_bf16 = layout == "bf16" or model.config.model_type.startswith("gemma")
    dtype = torch.bfloat16 if wants_bf16 else torch.float16
    shard = {"max_shard_size": "20KB"} if layout == "sharded" else {}
    model.to(dtype).save_pretrained(folder, **shard)
    model.float()
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if packed:
        path = folder / "model.safetensors"
        tensors = {k: v for k, v in load_file(path).items() if f"{k}_blocks" not in packed}
        save_file({**tensors, **packed}, path, metadata={"format": "pt"})
        config["quantization_config"] = {"quant_method": "mxfp4"}
    elif layout == "f16":
        config = older_config(config)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_tokenizer(folder)


def older_config(config):
    """`rope_parameters` as transformers 4 wrote them, which is what most folders on the Hub hold."""
    rope = dict(config.pop("rope_parameters", None) or {})
    if "full_attention" in rope or not rope:
        return {**config, **({"rope_parameters": rope} if rope else {})}
    config["rope_theta"] = rope.pop("rope_theta")
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config and config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    rope.pop("original_max_position_embeddings", None) if rope.get("rope_type") == "longrope" else None
    if (part := rope.pop("partial_rotary_factor", None)) is not None:
        config["partial_rotary_factor"] = part
    config["rope_scaling"] = None if rope.get("rope_type") == "default" else {**rope, "type": rope["rope_type"]}
    return config


def write_gguf(name, folder, out, f32):
    """Converts through llama.cpp's own class of the architecture; only the vocabulary is ours.

    The name says nothing of the architecture: llama.cpp expects special tokens of a file whose name has "phi3" in it.
    """
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    if hparams["model_type"] == "falcon" and not hparams["new_decoder_architecture"]:
        del hparams["num_kv_heads"]  # falcon-7b has no such key: one head; transformers fills in the number of query heads
    if hparams["model_type"] == "mpt":
        hparams["architectures"] = ["MPTForCausalLM"]  # the name on the Hub, which is older than transformers' class
    if name == "minicpm":
        hparams.update(architectures=["MiniCPMForCausalLM"], model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=24)
    if hparams["model_type"] == "cohere2":
        hparams["rotary_pct"] = 1.0  # the Hub's configurations have it, transformers' class does not
    base = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    base = getattr(base, "Ministral3Model", base)  # the class of that name only chooses one

    def set_vocab(self):
        writer = self.gguf_writer
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(VOCAB)
        writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(VOCAB) - len(SPECIAL)))
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_add_bos_token(False)

    converter = type(f"Tiny{base.__name__}", (base,), {"model_arch": base.model_arch, "set_vocab": set_vocab})
    ftype = gguf.LlamaFileType.ALL_F32 if f32 else gguf.LlamaFileType.MOSTLY_F16
    converter(folder, ftype, out, eager=True, model_name="tiny", hparams=hparams).write()


def write_json(path, name, prompt, result, model, entry, seed, n_ctx):
    logits, greedy, margin = result
    positions = [*(p for p in POSITIONS if p < len(prompt) - 1), len(prompt) - 1]
    number = lambda x: float(f"{x:.6g}")
    rows = ",\n  ".join(json.dumps([number(x) for x in logits[p].tolist()], separators=(",", ":")) for p in positions)
    head = {
        "model": f"{name}.gguf", "architecture": model.config.architectures[0], "seed": seed, "n_ctx": n_ctx,
        "reference": f"transformers {transformers.__version__}, torch {torch.__version__}, f32",
        "note": entry.get("note", ""), "smallest_margin": number(margin),
        "tokens": prompt, "greedy": greedy, "positions": positions,
    }
    lines = ",\n".join(f' "{k}": {json.dumps(v)}' for k, v in head.items())
    path.write_text(f'{{\n{lines},\n "logits": [\n  {rows}\n ]\n}}\n')


def make(name, entry, f32_folder):
    torch.manual_seed(0)
    config = entry["config"]()
    config.architectures = [kind(config)._model_mapping[type(config)].__name__]
    rng = np.random.default_rng(len(name))
    draw = lambda n: [0, *(int(t) for t in rng.integers(2, VOCAB_SIZE, n - 1))]
    runs = {name: (draw(40), 128)}
    if name == "phi3":
        runs = {"phi3-short": (draw(40), 256), "phi3-long": (draw(300), 512)}
    seed, model, packed, results = search(config, [prompt for prompt, _ in runs.values()])
    for (run, (prompt, n_ctx)), result in zip(runs.items(), results):
        write_json(OUT / f"{run}.json", name, prompt, result, model, entry, seed, n_ctx)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        write_folder(model, packed, folder, entry.get("folder", ""))
        write_gguf(name, folder, OUT / f"{name}.gguf", f32=False)
        if f32_folder:
            write_folder(model, {}, Path(scratch) / "f32", "")
            write_gguf(name, Path(scratch) / "f32", f32_folder / f"{name}.gguf", f32=True)
        if "folder" in entry:
            target = OUT / f"{name}-hf"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
    values = results[0][0]
    size = (OUT / f"{name}.gguf").stat().st_size
    print(f"{name}: seed {seed}, logits ±{values.std():.2f}, margin {results[0][2]:.3f}, greedy {results[0][1]}, {size} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--f32", type=Path)
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    logging.basicConfig(level=logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    if options.f32:
        options.f32.mkdir(exist_ok=True, parents=True)
    for name in options.only:
        make(name, MODELS[name], options.f32)


if __name__ == "__main__":
    main()
