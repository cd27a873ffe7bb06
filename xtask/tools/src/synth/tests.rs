//! Tests of whole files, and of the blocks.

use pollster::block_on;
use stonechat_formats::{DType, ModelFile};
use stonechat_llm::{Model, OutputRequest, OutputRow, Slot, StateOptions};
use stonechat_nn::{Cpu, KvDType};
use stonechat_whisper::StateOptions as SpeechStateOptions;

use super::shapes::{Biases, Experts, Language, Whisper};
use super::*;

/// The shape `name`, cut down so that a test has it in a moment.
fn tiny(name: &str) -> Language {
    let Sizes::Language(sizes) = &find(name).unwrap().sizes else { panic!("{name} is Whisper") };
    let n_kv_heads = if sizes.n_kv_heads == sizes.n_heads { 4 } else { 2 };
    let (n_heads, head_dim, n_rot) = (4, 64, sizes.n_rot.min(64));
    Language {
        n_ctx: 64,
        d_model: 256,
        n_layers: 2,
        n_heads,
        n_kv_heads,
        head_dim,
        n_rot,
        d_ff: 512,
        experts: sizes.experts.map(|_| Experts { n_experts: 8, n_used: 2, d_ff: 256 }),
        vocab_size: 300,
        ..sizes.clone()
    }
}

/// A folder of this test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("xtask-synth-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind fails no test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn logits_of(path: &Path, text: &str) -> Vec<f32> {
    let model = Model::load(Cpu::new(1).unwrap(), &ModelFile::open(path).unwrap(), |_| ()).unwrap();
    let tokens = model.tokenize_prompt(text);
    assert_eq!(tokens.len(), text.len(), "each byte is a token");
    let mut state = model.state(StateOptions::new(64)).unwrap();
    let run = state.run(Slot::new(0), &tokens, OutputRequest::Logits, 1);
    let OutputRow::Logits(logits) = block_on(run).unwrap().row(0) else { panic!("logits") };
    logits.to_vec()
}

fn spread(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    (mean, square.sqrt())
}

#[test]
fn every_language_shape_loads_and_its_logits_are_finite_and_differ() {
    let folder = Folder::new("language");
    for shape in &SHAPES {
        let Sizes::Language(_) = shape.sizes else { continue };
        let own = Some(shape.types).filter(|types| *types != "q4_k_m");
        for types in ["q4_k_m", "q8_0", "f16"].into_iter().chain(own) {
            let path = folder.0.join(format!("{}-{types}.gguf", shape.name));
            let sizes = Sizes::Language(tiny(shape.name));
            write(&plan(&sizes, types.parse().unwrap()).unwrap(), &path, 7).unwrap();
            let logits = logits_of(&path, "Who is there?");
            let (_, deviation) = spread(&logits);
            let (name, is_finite) = (shape.name, logits.iter().all(|l| l.is_finite()));
            assert!(is_finite && (0.01..100.0).contains(&deviation), "{name} {types}: {deviation}");
        }
    }
}

#[test]
fn a_whisper_file_loads_and_its_logits_are_finite_and_differ() {
    let folder = Folder::new("whisper");
    let sizes = Sizes::Whisper(Whisper {
        n_mels: 80,
        d_model: 64,
        n_heads: 2,
        n_audio_layers: 1,
        n_text_layers: 1,
        vocab_size: 51865,
    });
    let path = folder.0.join("tiny.gguf");
    write(&plan(&sizes, "q4_k_m".parse().unwrap()).unwrap(), &path, 7).unwrap();
    let file = ModelFile::open(&path).unwrap();
    let model = stonechat_whisper::Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap();
    let options = SpeechStateOptions { kv_dtype: KvDType::F32, ..SpeechStateOptions::default() };
    let mut state = model.state(options).unwrap();
    state.encode(&vec![0.1; stonechat_whisper::WINDOW_FRAMES * 80]);
    state.set_audio(0);
    let slot = state.slot(0, 0);
    let mut plan = state.plan();
    plan.add(slot, &[model.special().sot, 65, 66], [2]).unwrap();
    plan.run();
    let mut logits = Vec::new();
    block_on(state.read_logits(1, &mut logits)).unwrap();
    let (_, deviation) = spread(&logits);
    assert!(logits.iter().all(|l| l.is_finite()) && deviation > 0.01, "{deviation}");
}

#[test]
fn the_full_shapes_have_the_sizes_of_the_models() {
    for (name, n_weights) in [
        // As the published files have them.
        ("smollm2-135m", 134_515_008),
        ("gemma3-270m", 268_098_176),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("phi-2", 2_779_683_840),
        ("llama-3-8b", 8_030_261_248),
        ("gpt-oss-20b", 20_914_757_184),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama-3-70b", 70_553_706_496),
        ("tiny.en", 37_760_256),
        ("large-v3-turbo", 808_878_080),
        ("large-v3", 1_543_490_560),
    ] {
        let plan = plan(&find(name).unwrap().sizes, "f16".parse().unwrap()).unwrap();
        let weights = plan.tensors.iter().map(|t| t.info.shape.iter().product::<usize>());
        assert_eq!(weights.sum::<usize>(), n_weights, "{name}");
    }
}

#[test]
fn a_mixture_gives_each_tensor_llama_cpps_type() {
    let types_of = |name: &str| {
        let plan = plan(&find(name).unwrap().sizes, "q4_k_m".parse().unwrap()).unwrap();
        move |tensor: &str| plan.tensors.iter().find(|t| t.info.name == tensor).unwrap().info.dtype
    };
    let tied = types_of("qwen2.5-1.5b");
    assert_eq!(tied("token_embd.weight"), DType::Q6K);
    assert_eq!(tied("blk.0.attn_v.weight"), DType::Q6K);
    assert_eq!(tied("blk.3.attn_v.weight"), DType::Q4K);
    assert_eq!(tied("blk.5.ffn_down.weight"), DType::Q6K);
    assert_eq!(tied("blk.5.ffn_up.weight"), DType::Q4K);
    assert_eq!(tied("blk.0.attn_q.bias"), DType::F32);
    assert_eq!(tied("blk.0.attn_norm.weight"), DType::F32);
    let untied = types_of("llama-3-8b");
    assert_eq!(untied("token_embd.weight"), DType::Q4K);
    assert_eq!(untied("output.weight"), DType::Q6K);
    // Rows of 576 values are no whole blocks of 256.
    let short_rows = types_of("smollm2-135m");
    assert_eq!(short_rows("blk.3.attn_q.weight"), DType::Q5_0);
    assert_eq!(short_rows("token_embd.weight"), DType::Q8_0);
    let routed = types_of("qwen3-30b-a3b");
    assert_eq!(routed("blk.0.ffn_gate_inp.weight"), DType::F32);
    assert_eq!(routed("blk.6.ffn_down_exps.weight"), DType::Q4K);
    assert_eq!(routed("blk.47.ffn_down_exps.weight"), DType::Q6K);
    assert_eq!(routed("blk.47.ffn_up_exps.weight"), DType::Q4K);
    let whisper = types_of("base");
    assert_eq!(whisper("encoder.conv2.weight"), DType::F16);
    assert_eq!(whisper("encoder.positional_embedding"), DType::F32);
    assert_eq!(whisper("decoder.blocks.0.mlp.0.weight"), DType::Q4K);
}

#[test]
fn gpt_oss_is_planned_as_its_file_is() {
    let shape = find("gpt-oss-20b").unwrap();
    let plan = plan(&shape.sizes, types_of(shape, None).unwrap()).unwrap();
    let tensor = |name: &str| &plan.tensors.iter().find(|t| t.info.name == name).unwrap().info;
    let experts = tensor("blk.23.ffn_gate_exps.weight");
    assert_eq!((experts.dtype, &experts.shape[..]), (DType::Mxfp4, &[32, 2880, 2880][..]));
    let bias = tensor("blk.23.ffn_gate_exps.bias");
    assert_eq!((bias.dtype, &bias.shape[..]), (DType::F32, &[32, 2880][..]));
    assert_eq!(tensor("blk.0.attn_sinks.weight").shape, [64]);
    assert_eq!(tensor("blk.0.post_attention_norm.weight").dtype, DType::F32);
    for name in ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"] {
        assert_eq!(tensor(name).dtype, DType::Q8_0, "{name}");
    }
    assert_eq!(plan.metadata.f32("gpt-oss.rope.scaling.factor").unwrap(), 32.0);
    assert_eq!(plan.metadata.usize("general.file_type").unwrap(), 38);
}

#[test]
fn the_first_layers_are_those_of_the_whole_shape() {
    let names = |sizes: &Sizes| {
        let plan = plan(sizes, "q8_0".parse().unwrap()).unwrap();
        plan.tensors.iter().map(|t| t.info.name.clone()).collect::<Vec<_>>()
    };
    let sizes = &find("qwen3-30b-a3b").unwrap().sizes;
    let (all, first) = (names(sizes), names(&sizes.with_layers(2).unwrap()));
    let is_in_first = |name: &&String| {
        !name.starts_with("blk.") || name.starts_with("blk.0.") || name.starts_with("blk.1.")
    };
    assert_eq!(first, all.iter().filter(is_in_first).cloned().collect::<Vec<_>>());
    // The decoder of large-v3-turbo has fewer layers than its encoder.
    let turbo = find("large-v3-turbo").unwrap().sizes.with_layers(6).unwrap();
    let Sizes::Whisper(turbo) = turbo else { panic!("Whisper") };
    assert_eq!((turbo.n_audio_layers, turbo.n_text_layers), (6, 4));
}

#[test]
fn values_of_every_type_spread_as_promised() {
    let types = DType::ALL.iter().copied().filter(|&dtype| blocks::can_fill(dtype));
    for dtype in types {
        let mut values = vec![0.0; 1 << 17];
        let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap()];
        blocks::fill(dtype, &mut bytes, 3).unwrap();
        stonechat_quant::dequantize_row(dtype, &bytes, &mut values).unwrap();
        let (mean, deviation) = spread(&values);
        assert!(mean.abs() < 0.0005, "{dtype}: mean {mean}");
        // MXFP4's scales are powers of two.
        assert!((deviation - 0.02).abs() < 0.003, "{dtype}: deviation {deviation}");
        let largest = values.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        assert!(largest < 0.16, "{dtype}: {largest}");
    }
}

#[test]
fn the_seed_decides_the_bytes() {
    let folder = Folder::new("seed");
    let plan = plan(&Sizes::Language(tiny("qwen2.5-0.5b")), "q4_k_m".parse().unwrap()).unwrap();
    let bytes_of = |seed| {
        let path = folder.0.join("model.gguf");
        write(&plan, &path, seed).unwrap();
        std::fs::read(path).unwrap()
    };
    let first = bytes_of(1);
    assert!(first == bytes_of(1) && first != bytes_of(2));
}

#[test]
fn biases_stand_where_the_models_have_them() {
    for (name, biases, n_biases) in [
        ("llama-3-8b", Biases::None, 0),
        ("qwen2.5-1.5b", Biases::Inputs, 3 * 28),
        // Query, key, value, output, up, down and norm of each layer; the last norm and the logits.
        ("phi-2", Biases::All, 7 * 32 + 2),
        // Query, key, value, output, router, gate, up and down of each layer.
        ("gpt-oss-20b", Biases::Layers, 8 * 24),
    ] {
        let Sizes::Language(sizes) = &find(name).unwrap().sizes else { panic!("{name}") };
        let plan = plan(&Sizes::Language(sizes.clone()), "q4_0".parse().unwrap()).unwrap();
        let with_bias = plan.tensors.iter().filter(|t| t.info.name.ends_with(".bias")).count();
        assert_eq!((sizes.biases, with_bias), (biases, n_biases), "{name}");
    }
}

#[test]
fn what_cannot_be_written_is_one_line() {
    let folder = Folder::new("errors");
    let args = |shape: &str, output: PathBuf| SynthArgs {
        script: None,
        shape: Some(shape.to_owned()),
        output: Some(output),
        types: Some("q4_k_m".parse().unwrap()),
        layers: None,
        seed: 1,
        list: false,
    };
    let message = |args: &SynthArgs| format!("{:#}", run(args).unwrap_err());
    let unknown = message(&args("gpt-5", folder.0.join("x.gguf")));
    assert!(unknown.starts_with("unknown shape \"gpt-5\": expected one of smollm2"), "{unknown}");
    let missing = message(&args("tiny.en", folder.0.join("no/such/folder/x.gguf")));
    assert!(missing.contains("No such file or directory") && !missing.contains('\n'), "{missing}");
    let is_folder = message(&args("tiny.en", folder.0.clone()));
    assert!(is_folder.contains("is a directory") && !is_folder.contains('\n'), "{is_folder}");
    let layers = |n| SynthArgs { layers: Some(n), ..args("tiny.en", folder.0.join("x.gguf")) };
    assert_eq!(message(&layers(0)), "--layers: expected 1 to 4, got 0");
    assert_eq!(message(&layers(5)), "--layers: expected 1 to 4, got 5");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
}

/// Answers repeat words, end alike, and one is empty.
#[test]
fn a_script_is_what_the_model_says() {
    let folder = Folder::new("script");
    let path = folder.0.join("script.gguf");
    let answers = [
        ("<|one|>", "the end the end the end Grüße 🎉 the end"),
        ("<|two|>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}} the end"),
        ("<|three|>", "end"),
        ("<|four|>", ""),
    ];
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<|{{ which }}|>";
    let owned = answers.map(|(marker, answer)| (marker.to_owned(), answer.to_owned()));
    let plan = script::plan(&owned.into(), template).unwrap();
    write(&plan, &path, 1).unwrap();
    let llm = stonechat::Llm::open(path).unwrap();
    for (marker, answer) in answers {
        for temperature in [0.0, 1.0] {
            let mut chat = stonechat::ChatRequest::from("the end").temperature(temperature);
            let which = marker.trim_matches(['<', '|', '>']);
            chat.conversation.variables.insert("which".to_owned(), which.into());
            assert_eq!(llm.chat(chat).wait().unwrap().text, answer);
        }
    }
}
