//! Models whose layers differ in their sizes.

use pollster::block_on;
use stonechat_formats::{GgufWriter, Metadata, ModelFile, TensorInfo};
use stonechat_nn::{Cpu, KvDType, PAGE_LEN, Slot};
use stonechat_testkit::{Reference, ReferenceGroup};

use super::{Config, Devices, Model, StateOptions, gguf};
use crate::cache::prompt_cache::{self, SaltedText};
use crate::{FfnConfig, MemoryStore, OutputRequest, OutputRow, Pooling, PrefixCache, State};

/// Tokens of a prompt of two pages.
const PROMPT: usize = PAGE_LEN + 6;

/// A tiny Llama of two layers. The second one computes the same with other sizes: twice the width of the FFN, the new half with
/// weights of 0, or a KV head for each query head.
fn changed(wide_ffn: bool, all_kv_heads: bool) -> ModelFile {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).unwrap();
    let mut metadata = file.metadata().clone();
    if wide_ffn {
        metadata.set("llama.feed_forward_length", vec![32u32, 64]);
    }
    if all_kv_heads {
        metadata.set("llama.attention.head_count_kv", vec![2u32, 4]);
    }
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for tensor in file.tensors() {
        let mut info = TensorInfo::new(tensor.name, tensor.dtype, tensor.shape);
        let mut bytes = tensor.data.load().unwrap().to_vec();
        // Rows of 32 weights in f16; heads of 8 rows.
        match tensor.name.strip_prefix("blk.1.") {
            Some("ffn_gate.weight" | "ffn_up.weight") if wide_ffn => {
                info.shape[0] *= 2;
                bytes.resize(2 * bytes.len(), 0);
            }
            Some("ffn_down.weight") if wide_ffn => {
                info.shape[1] *= 2;
                bytes = bytes.chunks(64).flat_map(|row| [row, &[0; 64]].concat()).collect();
            }
            Some("attn_k.weight" | "attn_v.weight") if all_kv_heads => {
                info.shape[0] *= 2;
                bytes = bytes.chunks(8 * 64).flat_map(|head| [head, head].concat()).collect();
            }
            _ => {}
        }
        data.push((info.name.clone(), bytes));
        infos.push(info);
    }
    let mut writer = GgufWriter::new(Vec::new(), &metadata, infos).unwrap();
    data.iter().for_each(|(name, bytes)| writer.write_tensor(name, bytes).unwrap());
    ModelFile::from_reader(writer.finish().unwrap()).unwrap()
}

/// Logits of a prompt and of a token after its pages in another sequence, and the pages.
fn story(file: &ModelFile, devices: impl Into<Devices>) -> (Vec<f32>, Vec<Vec<u8>>) {
    let config = gguf::config(file).unwrap();
    let model = Model::with_config(devices.into(), file, config, |_| {}).unwrap();
    let sizes = StateOptions { n_sequences: 2, kv_dtype: KvDType::F32, ..StateOptions::new(128) };
    let mut state = model.state(sizes).unwrap();
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7 % 60 + 2).collect();
    let (mut logits, mut pages) = (Vec::new(), vec![Vec::new(); 2]);
    for (slot, tokens) in [(0, &prompt[..]), (1, &[9])] {
        if slot == 1 {
            for (index, page) in pages.iter_mut().enumerate() {
                block_on(state.read_page(Slot::new(0), index, page)).unwrap();
            }
            let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
            state.restore(Slot::new(1), PROMPT, &pages).unwrap();
        }
        let run = state.run(Slot::new(slot), tokens, OutputRequest::Logits, 1);
        let OutputRow::Logits(row) = block_on(run).unwrap().row(0) else { panic!("logits") };
        logits.extend_from_slice(row);
    }
    (logits, pages)
}

fn cpu() -> Cpu {
    Cpu::new(1).unwrap()
}

#[test]
fn layers_may_differ_in_ffn_and_kv_heads() {
    let (expected, _) = story(&changed(false, false), cpu());
    let limit = expected.iter().fold(0.0, |max: f32, x| max.max(x.abs())) * 1e-4;
    for (wide_ffn, all_kv_heads) in [(true, false), (false, true), (true, true)] {
        let file = changed(wide_ffn, all_kv_heads);
        let (got, pages) = story(&file, cpu());
        let error = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error <= limit, "{wide_ffn} {all_kv_heads}: {error}");
        // Pages do not depend on the split.
        let split = story(&file, Devices::from(cpu()).split(1, cpu()));
        assert_eq!((split.0 == got, split.1 == pages), (true, true));
    }
}

#[test]
fn arrays_of_a_file_describe_its_layers() {
    let config = Config::from_file(&changed(true, false)).unwrap();
    assert_eq!(config.layers.iter().map(|l| l.ffn.d_ff()).collect::<Vec<_>>(), [32, 64]);
    assert!(matches!(config.layers[1].ffn, FfnConfig::Dense { d_ff: 64, .. }));
    let config = Config::from_file(&changed(false, true)).unwrap();
    let heads = config.layers.iter().map(|layer| config.kv(layer).n_kv_heads);
    assert_eq!((config.kv_groups.len(), heads.collect::<Vec<_>>()), (2, vec![2, 4]));
    // The second layer has twice the heads of the first.
    let options = StateOptions::new(128);
    let [first, second] = [0..1, 1..2].map(|layers| options.kv_bytes_of(&config, layers));
    assert_eq!((second, options.kv_bytes(&config)), (2 * first, 3 * first));
}

/// A model and a state of it, for greedy texts.
struct Texts {
    model: Model,
    state: State,
}

impl Texts {
    fn new(file: &ModelFile, devices: impl Into<Devices>) -> Self {
        let model = Model::load(devices, file, |_| {}).unwrap();
        let sizes = StateOptions {
            n_sequences: 3,
            n_outputs: 3,
            kv_dtype: KvDType::F32,
            ..StateOptions::new(3 * PAGE_LEN)
        };
        let state = model.state(sizes).unwrap();
        Self { model, state }
    }

    /// Continues sequences by these tokens, then by six greedy ones, all in one batch; returns the greedy tokens of each.
    fn greedy(&mut self, starts: &[(Slot, &[u32])]) -> Vec<Vec<u32>> {
        let mut next: Vec<Vec<u32>> = starts.iter().map(|(_, tokens)| tokens.to_vec()).collect();
        let mut texts = vec![Vec::new(); starts.len()];
        for _ in 0..6 {
            let mut plan = self.state.plan();
            for ((slot, _), tokens) in starts.iter().zip(&next) {
                plan.add(*slot, tokens, OutputRequest::TopK(1), 1).unwrap();
            }
            let ticket = plan.run().unwrap();
            let outputs = block_on(self.state.outputs(ticket)).unwrap();
            for (index, (text, next)) in texts.iter_mut().zip(&mut next).enumerate() {
                let OutputRow::TopK(top_k) = outputs.row(index) else { panic!("top-k logits") };
                text.push(top_k[0].index);
                *next = vec![top_k[0].index];
            }
        }
        texts
    }
}

/// Greedy texts of forks, after hits of the prefix cache, and from a file.
fn forked_cached_and_saved(
    file: &ModelFile,
    devices: Devices,
    path: &std::path::Path,
) -> Vec<Vec<u32>> {
    let mut texts = Texts::new(file, devices.clone());
    let [a, b, c] = [0, 1, 2].map(Slot::new);
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7 % 60 + 2).collect();
    let mut all = texts.greedy(&[(a, &prompt)]);
    assert_eq!(texts.state.truncate(a, PROMPT), PROMPT);
    // The forks write to a page that all three share.
    texts.state.fork(a, b);
    texts.state.fork(a, c);
    all.extend(texts.greedy(&[(c, &[9]), (a, &[8]), (b, &[7])]));

    let Texts { model, state } = &mut texts;
    let stores: Vec<Box<dyn crate::PageStore>> = vec![Box::new(MemoryStore::new(1 << 20))];
    let mut cache = PrefixCache::with_stores(model.info(), state.options(), stores);
    cache.insert_ended(state, a, &prompt, 0);
    let saved = SaltedText { tokens: &prompt, salt: 0 };
    block_on(prompt_cache::save(model.info(), state, a, saved, path)).unwrap();
    for slot in [a, b, c] {
        assert_eq!(state.truncate(slot, 0), 0);
    }
    // A hit inside of a page, which is copied before it is written.
    let other = [&prompt[..PAGE_LEN + 2], &[3; 5]].concat();
    assert_eq!(cache.attach(state, b, &other, 0), PAGE_LEN + 2);
    all.extend(texts.greedy(&[(b, &other[PAGE_LEN + 2..])]));
    // A page that went to the store and comes back.
    let Texts { state, .. } = &mut texts;
    state.truncate(b, 0);
    assert!(block_on(cache.evict(state, state.n_pages())).unwrap());
    block_on(cache.load(state, b, &other, 0)).unwrap();
    assert_eq!(cache.attach(state, b, &other, 0), PAGE_LEN);
    all.extend(texts.greedy(&[(b, &other[PAGE_LEN..])]));
    cache.clear(&mut texts.state);

    let mut texts = Texts::new(file, devices);
    let restored = prompt_cache::restore(texts.model.info(), &mut texts.state, c, path).unwrap();
    assert_eq!((restored.tokens == prompt, texts.state.len(c)), (true, PROMPT));
    all.extend(texts.greedy(&[(c, &[9])]));
    std::fs::remove_file(path).unwrap();
    all
}

/// Layers of one and of two KV groups give the same texts. The pools of the oracle hold NaN where nothing was written.
#[test]
fn texts_do_not_depend_on_kv_groups() {
    let path = |name| std::env::temp_dir().join(format!("stonechat-{name}-{}", std::process::id()));
    let expected =
        forked_cached_and_saved(&changed(false, false), cpu().into(), &path("one-group"));
    // A fork and a saved text continue as the text that they are from.
    assert_eq!((expected.len(), &expected[1]), (7, &expected[6]));
    assert_eq!(expected[4], expected[5]);
    let two_groups = changed(false, true);
    let devices: [(&str, Devices); 4] = [
        ("cpu", cpu().into()),
        ("split", Devices::from(cpu()).split(1, cpu())),
        ("oracle", Reference.into()),
        ("ranks", ReferenceGroup(2).into()),
    ];
    for (name, devices) in devices {
        assert_eq!(forked_cached_and_saved(&two_groups, devices, &path(name)), expected, "{name}");
    }
}

/// A golden model with other metadata.
fn with_metadata(name: &str, edit: impl Fn(&mut Metadata)) -> ModelFile {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm");
    let file = ModelFile::open(std::path::Path::new(folder).join(name)).unwrap();
    let mut metadata = file.metadata().clone();
    edit(&mut metadata);
    let infos = file.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, infos).unwrap();
    for tensor in file.tensors() {
        writer.write_tensor(tensor.name, &tensor.data.load().unwrap()).unwrap();
    }
    ModelFile::from_reader(writer.finish().unwrap()).unwrap()
}

#[test]
fn blocks_that_predict_further_tokens_are_no_layers() {
    let file = with_metadata("glm4.gguf", |metadata| {
        metadata.set("glm4.block_count", 3u32);
        metadata.set("glm4.nextn_predict_layers", 2u32);
    });
    assert_eq!(Config::from_file(&file).unwrap().n_layers(), 1);
    // The last block of this file is one.
    let file = with_metadata("llama.gguf", |m| m.set("llama.nextn_predict_layers", 1u32));
    let model = Model::load(cpu(), &file, |_| {}).unwrap();
    assert_eq!(model.info().config().n_layers(), 1);
    let file = with_metadata("llama.gguf", |m| m.set("llama.block_count", 1u32));
    let error = Model::load(cpu(), &file, |_| {}).unwrap_err().to_string();
    assert!(error.contains("`blk.1."), "{error}");
}

#[test]
fn multipliers_have_defaults_and_limits() {
    let scales = |name: &str, edit: &dyn Fn(&mut Metadata)| {
        let config = Config::from_file(&with_metadata(name, edit))?;
        Ok::<_, crate::Error>([config.embedding_scale, config.residual_scale, config.logit_scale])
    };
    assert_eq!(scales("granite.gguf", &|_| {}).unwrap(), [3.0, 0.4, 2.0]);
    assert_eq!(scales("llama.gguf", &|_| {}).unwrap(), [1.0; 3]);
    // Old files of MiniCPM have none: those of the 2B model count.
    let absent = |m: &mut Metadata| {
        for key in ["embedding_scale", "residual_scale", "logit_scale"] {
            m.set(format!("minicpm.{key}"), 0.0f32);
        }
    };
    let [embedding, residual, logits] = scales("minicpm.gguf", &absent).unwrap();
    assert_eq!((embedding, residual, logits), (12.0, 1.4 / 2f32.sqrt(), 256.0 / 32.0));
    for (key, value) in [("embedding_scale", -1.0), ("residual_scale", f32::NAN)] {
        let edit = |m: &mut Metadata| m.set(format!("granite.{key}"), value);
        let error = scales("granite.gguf", &edit).unwrap_err().to_string();
        assert!(error.contains("must be positive"), "{error}");
    }
}

#[test]
fn queries_that_grow_are_rotated_whole() {
    let file = with_metadata("mistral3.gguf", |m| m.set("mistral3.rope.dimension_count", 8u32));
    let error = Config::from_file(&file).unwrap_err().to_string();
    assert!(error.contains("needs 16 rotated channels, got 8"), "{error}");
    let file = with_metadata("mistral3.gguf", |m| {
        m.set("mistral3.rope.scaling.original_context_length", 0u32);
    });
    assert!(Config::from_file(&file).is_err());
}

/// The folder of the tiny Llama as sentence-transformers has one: no `model.` before the names of tensors, no output.
fn embedder(pooling: &str) -> ModelFile {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama-hf");
    let folder = std::env::temp_dir().join(format!("stonechat-embedder-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(format!("{golden}/{name}"), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("1_Pooling/config.json"), pooling).unwrap();
    let bytes = std::fs::read(format!("{golden}/model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(len);
    let mut header = String::from_utf8(header.to_vec()).unwrap();
    header = header.replace("\"model.", "\"").replace("lm_head.weight", "unused.weight");
    let len = (header.len() as u64).to_le_bytes();
    let file = [&len[..], header.as_bytes(), data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    let file = ModelFile::open(&folder).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    file
}

#[test]
fn folders_of_embedders_name_their_pooling() {
    for (text, expected) in [
        (r#"{"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}"#, Pooling::Last),
        (r#"{"pooling_mode_mean_tokens": true, "include_prompt": true}"#, Pooling::Mean),
        (r#"{"pooling_mode": "cls"}"#, Pooling::Cls),
    ] {
        let model = Model::load(cpu(), &embedder(text), |_| {}).unwrap();
        assert_eq!(model.info().config().pooling, Some(expected));
    }
    let two = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}"#;
    for text in ["{}", two, r#"{"pooling_mode_max_tokens": true}"#, "["] {
        let error = Config::from_file(&embedder(text)).unwrap_err().to_string();
        assert!(error.contains("1_Pooling/config.json"), "{error}");
    }
}

/// The golden folder of Gemma 3 with another `config.json`.
fn gemma3_folder(config: &serde_json::Value) -> Result<Config, crate::Error> {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/gemma3-hf");
    let folder = std::env::temp_dir().join(format!("stonechat-gemma3-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(format!("{golden}/{name}"), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let file = ModelFile::open(&folder).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    Config::from_file(&file)
}

/// The Hub's Gemma 3 4B names only what differs from transformers' defaults.
#[test]
fn a_nested_configuration_has_defaults() {
    let text = serde_json::json!({
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    });
    let config = gemma3_folder(&serde_json::json!({"model_type": "gemma3", "text_config": text}));
    let config = config.unwrap();
    let [local, full] = [&config.layers[0], &config.layers[5]];
    assert_eq!((config.vocab_size, config.n_layers(), full.n_heads), (262_208, 34, 8));
    assert_eq!((local.window, full.window), (Some(1024), None));
    let [local, full] = [local, full].map(|layer| layer.rope.unwrap());
    assert_eq!((local.freq_base, full.freq_base), (1e4, 1e6));
    assert_ne!(local.scaling, full.scaling);
    // A model of text alone has no defaults.
    let error = gemma3_folder(&text).unwrap_err().to_string();
    assert!(error.contains("num_attention_heads"), "{error}");
}
