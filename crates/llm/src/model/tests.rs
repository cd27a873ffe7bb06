//! Models whose layers differ in their sizes.

use pollster::block_on;
use stonechat_formats::{GgufWriter, Metadata, ModelFile, TensorInfo};
use stonechat_nn::{Cpu, KvDType, PAGE_LEN, Slot};

use super::{Config, Devices, Model, StateOptions, gguf};
use crate::{FfnConfig, OutputRequest, OutputRow};

/// Tokens of a prompt of two pages.
const PROMPT: usize = PAGE_LEN + 6;

/// A tiny Llama of two layers. The second one computes the same with other sizes: twice the width of the FFN, the new half with
/// weights of 0, or a KV head for each query head.
fn changed(wide_ffn: bool, all_kv_heads: bool) -> ModelFile {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).unwrap();
    let mut metadata = Metadata::new();
    file.metadata().iter().for_each(|(key, value)| metadata.set(key, value.clone()));
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
    // The forward pass could run it, but devices copy shared pages in one pool.
    let error = Config::from_file(&changed(false, true)).unwrap_err().to_string();
    assert_eq!(
        error,
        "config: `attention.head_count_kv` differs from layer to layer, which is not supported"
    );
}
